package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// machine describes where it was measured, as far as the system tells.
func machine() string {
	cpu, kernel := runtime.GOARCH, runtime.GOOS
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(raw); m != nil {
			cpu = string(m[1])
		}
	}
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		version, _, _ := strings.Cut(strings.TrimSpace(string(raw)), "-")
		kernel += " " + version
	}
	memory := ""
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kb, err := field(raw, "MemTotal"); err == nil {
			memory = fmt.Sprintf(", %.0f GiB", kb/(1<<20))
		}
	}
	return fmt.Sprintf("%d cores of %s%s, %s, %s", runtime.NumCPU(), cpu, memory, kernel, runtime.Version())
}

// load is the machine's load of the last minute.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(raw), " ")
	return one
}

// field reads a number out of a file such as /proc/PID/status.
func field(raw []byte, name string) (float64, error) {
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+)`).FindSubmatch(raw)
	if m == nil {
		return 0, fmt.Errorf("no %s", name)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// resident is the resident memory of a process in MiB.
func resident(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kb, err := field(raw, "VmRSS")
	return kb / 1024, err
}

// residentTree is resident of a process and its children.
func residentTree(pid int) (mib float64, err error) {
	if mib, err = resident(pid); err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if parent, err := field(raw, "PPid"); err != nil || int(parent) != pid {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return 0, err
		}
		more, err := residentTree(child)
		if err != nil {
			return 0, err
		}
		mib += more
	}
	return mib, nil
}

// openFiles is how many files a process has open.
func openFiles(pid int) (float64, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return float64(len(names)), err
}
