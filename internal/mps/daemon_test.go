package mps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/internal/mps"
	"symmem/internal/mps/mpstest"
)

// mpstest.Install replaces the control program by a script, which starts no daemon. It logs "start
// of 2,3" if CUDA_VISIBLE_DEVICES is 2,3.

// A client of a daemon for the GPUs 2 and 3 numbers them from 0.
func TestDaemonListensUntilClose(t *testing.T) {
	log := mpstest.Install(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder) // Start creates the daemon's folder in it.
	d, err := mps.Start(t.Context(), append(os.Environ(), "CUDA_VISIBLE_DEVICES=2,3"))
	if err != nil {
		t.Fatal(err)
	}

	variables := d.Variables(2) // of a client that uses both GPUs
	getenv := func(name string) string { return variables[name] }
	if !mps.IsRunning(getenv) {
		t.Errorf("with the variables %v, IsRunning = false before Close, want true", variables)
	}

	if got := variables["CUDA_VISIBLE_DEVICES"]; got != "0,1" {
		t.Errorf("the client's CUDA_VISIBLE_DEVICES = %q, want 0,1", got)
	}

	if err := d.Close(); err != nil {
		t.Error(err)
	}

	checkEmpty(t, folder)
	if mps.IsRunning(getenv) {
		t.Error("IsRunning = true after Close, want false")
	}

	want := "start of 2,3\nquit\n"
	if text, err := os.ReadFile(log); string(text) != want {
		t.Errorf("the control program logged %q, %v; want %q", text, err, want)
	}
}

func checkEmpty(t *testing.T, folder string) {
	t.Helper()
	remaining, err := os.ReadDir(folder)
	if err != nil || len(remaining) > 0 {
		t.Errorf("%s contains %v (error %v), want nothing", folder, remaining, err)
	}
}

func TestVariablesOmitCUDAVisibleDevicesUnlessSet(t *testing.T) {
	mpstest.Install(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "") // makes the test restore the variable
	os.Unsetenv("CUDA_VISIBLE_DEVICES")
	d, err := mps.Start(t.Context(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}

	if _, isSet := d.Variables(2)["CUDA_VISIBLE_DEVICES"]; isSet {
		t.Error("Variables sets CUDA_VISIBLE_DEVICES although the environment does not")
	}

	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestFailedStartLeavesNoFiles(t *testing.T) {
	mpstest.Install(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	_, err := mps.Start(t.Context(), append(os.Environ(), mpstest.FailVariable+"=1"))
	if err == nil || !strings.Contains(err.Error(), mpstest.StartError) {
		t.Errorf("Start = %v; want an error that contains %q", err, mpstest.StartError)
	}

	checkEmpty(t, folder)
}

func TestStartFailsWithoutProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := mps.Start(t.Context(), os.Environ()); err == nil {
		t.Error("Start without the control program succeeded, want an error")
	}

	missingFolder := filepath.Join(t.TempDir(), "none")
	getenv := func(string) string { return missingFolder }
	if mps.IsRunning(getenv) {
		t.Error("IsRunning = true for a folder that does not exist, want false")
	}
}
