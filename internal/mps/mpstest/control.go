// Package mpstest provides a replacement for the program nvidia-cuda-mps-control. Instead of a
// daemon, it starts and stops a process that does nothing.
package mpstest

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"
)

// Broken is an environment variable that makes the replacement print Complaint and fail to start a
// daemon.
const (
	Broken    = "SYMMEM_TEST_MPS_BROKEN"
	Complaint = "An instance of this daemon is already running"
)

//go:embed control.sh
var control []byte

// Install puts the replacement first in PATH until the test ends. It returns the path of a file to
// which each invocation of the program appends a line.
func Install(t testing.TB) (log string) {
	t.Helper()
	folder := t.TempDir()
	log = filepath.Join(folder, "log")
	t.Setenv("SYMMEM_TEST_MPS_LOG", log)
	t.Setenv("PATH", folder+string(filepath.ListSeparator)+os.Getenv("PATH"))
	program := filepath.Join(folder, "nvidia-cuda-mps-control")
	if err := os.WriteFile(program, control, 0o700); err != nil {
		t.Fatal(err)
	}
	return log
}
