// Package mpstest replaces the program nvidia-cuda-mps-control by a script, which starts no daemon.
package mpstest

import (
	_ "embed"
	"os"
	"path/filepath"
	"testing"
)

// FailVariable is an environment variable that makes the script print StartError and fail.
const (
	FailVariable = "SYMMEM_TEST_MPS_BROKEN"
	StartError   = "An instance of this daemon is already running"
)

//go:embed control.sh
var controlScript []byte

// Install puts the script first in PATH until the test ends. Each start appends a line to the file
// log.
func Install(t testing.TB) (log string) {
	t.Helper()
	folder := t.TempDir()
	log = filepath.Join(folder, "log")
	t.Setenv("SYMMEM_TEST_MPS_LOG", log)
	t.Setenv("PATH", folder+string(filepath.ListSeparator)+os.Getenv("PATH"))
	program := filepath.Join(folder, "nvidia-cuda-mps-control")
	if err := os.WriteFile(program, controlScript, 0o700); err != nil {
		t.Fatal(err)
	}

	return log
}
