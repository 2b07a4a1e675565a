package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// file is one of an archive. A name that ends in a slash is a folder's.
type file struct {
	name    string
	mode    int64 // permission bits
	owner   int   // uid and gid
	content []byte
}

// tarred is a tar of files in their order, whose times are all zero.
func tarred(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner,
			Size: int64(len(f.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// gzipped is a gzipped tar.
func gzipped(files []file) ([]byte, error) {
	raw, err := tarred(files)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b) // its header has no time and no name
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}

// zipped is a zip of files, with the earliest time that a zip can say.
func zipped(files []file) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
		h.SetMode(os.FileMode(f.mode))
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// archives hold the program alone.
func (r release) archives(built []program) error {
	for _, p := range built {
		pack, ext := gzipped, "tar.gz"
		if p.os == "windows" {
			pack, ext = zipped, "zip"
		}
		raw, err := pack([]file{{p.name, 0o755, 0, p.bytes}, {"LICENSE", 0o644, 0, r.license}})
		if err != nil {
			return err
		}
		if err := r.write(r.fileName(p.platform, ext), raw); err != nil {
			return err
		}
	}
	return nil
}

// bundles are one for each platform: a bundle can tell systems apart, but not processors.
func (r release) bundles(built []program) error {
	for _, p := range built {
		manifest, err := r.object("hack/packaging/mcpb/manifest.json")
		if err != nil {
			return err
		}
		server := manifest["server"].(map[string]any)
		server["entry_point"] = "server/" + p.name
		server["mcp_config"].(map[string]any)["command"] = "${__dirname}/server/" + p.name
		manifest["compatibility"] = map[string]any{"platforms": []string{p.nodeOS}}
		raw, err := encode(manifest)
		if err != nil {
			return err
		}
		raw, err = zipped([]file{{"manifest.json", 0o644, 0, raw}, {"server/" + p.name, 0o755, 0, p.bytes}, {"LICENSE", 0o644, 0, r.license}})
		if err != nil {
			return err
		}
		if err := r.write(r.fileName(p.platform, "mcpb"), raw); err != nil {
			return err
		}
	}
	return nil
}

// npm packages are the launcher and, of the same version, one for each platform with the
// program in it, of which npm installs the one that fits: nothing is fetched or run at the
// installation.
func (r release) npm(built []program) error {
	const folder = "hack/packaging/npm"
	main, err := r.object(folder + "/package.json")
	if err != nil {
		return err
	}
	name := main["name"].(string)
	want := map[string]any{}
	for _, p := range platforms {
		want[fmt.Sprintf("%s-%s-%s", name, p.nodeOS, p.nodeArch)] = r.version
	}
	if fmt.Sprint(main["optionalDependencies"]) != fmt.Sprint(want) { // maps print sorted
		return fmt.Errorf("%s/package.json must have the optionalDependencies %v", folder, want)
	}
	manifest, err := os.ReadFile(filepath.Join(r.root, folder, "package.json"))
	if err != nil {
		return err
	}
	launcher, err := os.ReadFile(filepath.Join(r.root, folder, "bin/kube-write-mcp.js"))
	if err != nil {
		return err
	}
	pack := func(system string, files ...file) error {
		raw, err := gzipped(append(files, file{"package/LICENSE", 0o644, 0, r.license}))
		if err != nil {
			return err
		}
		return r.write(fmt.Sprintf("%s-npm%s-%s.tgz", product, system, r.version), raw)
	}
	err = pack("", file{"package/package.json", 0o644, 0, manifest}, file{"package/bin/kube-write-mcp.js", 0o755, 0, launcher})
	if err != nil {
		return err
	}
	for _, p := range built {
		system := "-" + p.nodeOS + "-" + p.nodeArch
		manifest, err := encode(map[string]any{
			"name": name + system, "version": r.version, "description": "The program of " + name + " for " + p.String(),
			"license": main["license"], "homepage": main["homepage"], "repository": main["repository"],
			"os": []string{p.nodeOS}, "cpu": []string{p.nodeArch}, "preferUnplugged": true,
		})
		if err != nil {
			return err
		}
		err = pack(system, file{"package/package.json", 0o644, 0, manifest}, file{"package/bin/" + p.name, 0o755, 0, p.bytes})
		if err != nil {
			return err
		}
	}
	return nil
}
