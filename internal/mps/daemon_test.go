package mps_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/internal/mps"
	"symmem/internal/mps/mpstest"
)

func TestADaemonListensUntilItIsClosed(t *testing.T) {
	log := mpstest.Install(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	d, err := mps.Start(t.Context(), append(os.Environ(), "CUDA_VISIBLE_DEVICES=2,3"))
	if err != nil {
		t.Fatal(err)
	}
	all := d.Variables(2)
	at := func(name string) string { return all[name] }
	if !mps.Running(at) || all["CUDA_VISIBLE_DEVICES"] != "0,1" {
		t.Errorf("variables %v", all)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 || mps.Running(at) {
		t.Errorf("left behind: %v, %v", left, err)
	}
	want := "start of 2,3\nquit\n"
	if text, err := os.ReadFile(log); string(text) != want {
		t.Errorf("the daemon was asked %q, %v", text, err)
	}
}

func TestGPUsKeepTheirNumbersWithoutCUDAVisibleDevices(t *testing.T) {
	mpstest.Install(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	os.Unsetenv("CUDA_VISIBLE_DEVICES")
	d, err := mps.Start(t.Context(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	if _, set := d.Variables(2)["CUDA_VISIBLE_DEVICES"]; set {
		t.Error("clients see other GPUs than before")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestADaemonThatDoesNotStartLeavesNothing(t *testing.T) {
	mpstest.Install(t)
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	_, err := mps.Start(t.Context(), append(os.Environ(), mpstest.Broken+"=1"))
	if err == nil || !strings.Contains(err.Error(), mpstest.Complaint) {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestWithoutTheProgramThereIsNoDaemon(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := mps.Start(t.Context(), os.Environ()); err == nil {
		t.Error("a daemon of no program")
	}
	empty := func(string) string { return filepath.Join(t.TempDir(), "none") }
	if mps.Running(empty) {
		t.Error("a daemon listens in a folder that is not there")
	}
}
