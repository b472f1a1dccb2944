package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// TestInterruptedDoctorReportsAndCleansUp interrupts symmem doctor when the ranks of its trial
// have created NCCL's log files.
func TestInterruptedDoctorReportsAndCleansUp(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the software GPU")
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	cmd := systest.Command(t, systest.Patience, symmemBinary(t), "doctor", "--backend=nccl",
		"--ranks=2")
	// The delay keeps the trial from finishing before the interrupt.
	cmd.Env = append(os.Environ(), "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl, "TMPDIR="+folder,
		"SOFTGPU_LAG=1000000")
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for countRanksWithLogs(cmd.Process.Pid) < 2 {
		if time.Now().After(deadline) {
			t.Fatal("the ranks did not open their logs within a minute")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked below
	code := cmd.ProcessState.ExitCode()
	if code != 128+int(syscall.SIGINT) || !strings.Contains(stdout.String(), "interrupted the trial") {
		t.Errorf("exit code %d, standard output %q; want 130 and a report of the signal", code, &stdout)
	}
	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

// countRanksWithLogs counts a process's children that have opened NCCL's log. The log is a file
// whose name has been deleted.
func countRanksWithLogs(parent int) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is valid
	children := map[string]bool{}
	for _, link := range links {
		child := filepath.Dir(filepath.Dir(link))
		pid, _ := strconv.Atoi(filepath.Base(child)) // folders that begin with a digit are processes
		target, _ := os.Readlink(link)               // "" if the process has exited
		isUnnamedFile := strings.HasSuffix(target, " (deleted)") &&
			!strings.HasPrefix(target, "/memfd:")
		if isUnnamedFile && parentOf(pid) == parent {
			children[child] = true
		}
	}
	return len(children)
}

const mpsProgram = "nvidia-cuda-mps-control"

// TestDoctorScripts runs the scripts in testdata/doctor, without a GPU and on software GPUs. In
// them, $CUDA and $NCCL name the software GPU's libraries, and $EXAMPLES names a folder of scripts
// that start ranks.
func TestDoctorScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the software GPU")
	}
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}
	command := filepath.Dir(symmemBinary(t))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/doctor",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CUDA", cuda)
			e.Setenv("NCCL", nccl)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("MASTER_PORT", strconv.Itoa(heldPort(t)))
			e.Setenv("PATH", command+string(filepath.ListSeparator)+pathWithoutMPS(t))
			e.Setenv("TMPDIR", filepath.Join(e.WorkDir, "tmp"))
			return errors.Join(hideGPUs(e), os.MkdirAll(filepath.Join(e.WorkDir, "tmp"), 0o700))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": checkExitCode},
	})
}

// pathWithoutMPS returns PATH without the program that starts NVIDIA's Multi-Process Service. A
// folder of links replaces the folder that contains it.
func pathWithoutMPS(t *testing.T) string {
	folders := filepath.SplitList(os.Getenv("PATH"))
	for i, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, mpsProgram)); err != nil {
			continue
		}
		folders[i] = t.TempDir()
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() == mpsProgram {
				continue
			}
			err := os.Symlink(filepath.Join(folder, e.Name()), filepath.Join(folders[i], e.Name()))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return strings.Join(folders, string(filepath.ListSeparator))
}

// TestDoctorWithoutHomeDirectory checks that doctor's verdict, which depends on the machine, is
// the same with and without a home directory.
func TestDoctorWithoutHomeDirectory(t *testing.T) {
	_, stdout, _ := runSymmem(t, "doctor", "--backend=host")
	_, wantVerdict, ok := strings.Cut(stdout, "\nhost backend: ")
	if !ok {
		t.Fatalf("the output contains no verdict: %s", stdout)
	}
	for name, home := range map[string]string{
		"HOME is empty": "", "HOME is not a folder": os.DevNull,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", home)
			t.Setenv("XDG_CONFIG_HOME", "")
			code, stdout, stderr := runSymmem(t, "doctor", "--backend=host")
			if code != exitOK || !strings.HasSuffix(stdout, wantVerdict) {
				t.Errorf("exit code %d, want 0 and the verdict %q\n%s%s", code, wantVerdict, stdout, stderr)
			}
		})
	}
}
