package mps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/internal/mps"
	"symmem/internal/mps/mpstest"
)

func TestDaemonListensUntilClose(t *testing.T) {
	log := mpstest.Install(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	d, err := mps.Start(t.Context(), append(os.Environ(), "CUDA_VISIBLE_DEVICES=2,3"))
	if err != nil {
		t.Fatal(err)
	}

	variables := d.Variables(2)
	getenv := func(name string) string { return variables[name] }
	if !mps.IsRunning(getenv) || variables["CUDA_VISIBLE_DEVICES"] != "0,1" {
		t.Errorf("Variables(2) = %v, want a folder with a daemon and GPUs 0,1", variables)
	}

	if err := d.Close(); err != nil {
		t.Error(err)
	}

	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
		t.Errorf("folder contains %v, %v after Close; want nothing", remaining, err)
	}

	if mps.IsRunning(getenv) {
		t.Error("IsRunning = true after Close, want false")
	}

	want := "start of 2,3\nquit\n"
	if text, err := os.ReadFile(log); string(text) != want {
		t.Errorf("the control program logged %q, %v; want %q", text, err, want)
	}
}

func TestVariablesOmitCUDAVisibleDevicesUnlessSet(t *testing.T) {
	mpstest.Install(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	os.Unsetenv("CUDA_VISIBLE_DEVICES")
	d, err := mps.Start(t.Context(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}

	if _, set := d.Variables(2)["CUDA_VISIBLE_DEVICES"]; set {
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

	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
		t.Errorf("folder contains %v, %v after a failed Start; want nothing", remaining, err)
	}
}

func TestStartFailsWithoutProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := mps.Start(t.Context(), os.Environ()); err == nil {
		t.Error("Start without the control program succeeded, want an error")
	}

	getenvEmpty := func(string) string { return filepath.Join(t.TempDir(), "none") }
	if mps.IsRunning(getenvEmpty) {
		t.Error("IsRunning = true for a folder that does not exist")
	}
}
