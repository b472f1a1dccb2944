// Package mpstest has a program in place of nvidia-cuda-mps-control, for machines without NVIDIA's
// driver. It starts a process that does nothing, and ends it.
package mpstest

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"
)

// Broken is the variable with which the program refuses to start a daemon, with the Complaint.
const (
	Broken    = "SYMMEM_TEST_MPS_BROKEN"
	Complaint = "An instance of this daemon is already running"
)

//go:embed control.sh
var control []byte

// Install puts the program first in PATH until the test ends. It returns a file in which the
// program notes what it was asked for, a line each.
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
