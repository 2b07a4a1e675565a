#!/usr/bin/env node
// Runs the program that the package of this system brought, and is as good as not there:
// its streams are the program's own, its signals are passed on, its end is the program's.
"use strict";
const { spawn } = require("node:child_process");

const windows = process.platform === "win32";
const system = `${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`@kubewrite/kube-write-mcp-${system}/bin/kube-write-mcp${windows ? ".exe" : ""}`);
} catch {
  console.error(`kube-write-mcp: there is no program for ${system}: it is not released for it, or npm was told to omit optional packages`);
  process.exit(1);
}

// In a process group of its own a Ctrl-C reaches the program once, through here: a second
// signal would end it in the middle of a write.
const child = spawn(program, process.argv.slice(2), { stdio: "inherit", detached: !windows });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => windows || child.kill(signal));
child.on("error", (err) => {
  console.error(`kube-write-mcp: ${err.message}`);
  process.exitCode = 1;
});
child.on("exit", (code, signal) => {
  if (!signal) return process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
