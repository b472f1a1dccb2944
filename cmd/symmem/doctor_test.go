package main

import (
	"bytes"
	"fmt"
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
// have created NCCL's log files. A trial runs a few calls on real ranks. The report must still
// appear, and no temporary file may remain.
func TestInterruptedDoctorReportsAndCleansUp(t *testing.T) {
	const ranks = 2
	const delay = 1_000_000 // of each operation on the software GPU, in microseconds
	if testing.Short() {
		t.Skip("compiles the software GPU")
	}

	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	folder := t.TempDir()
	cmd := systest.Command(t, systest.Patience, symmemBinary(t), "doctor", "--backend=nccl",
		fmt.Sprintf("--ranks=%d", ranks))
	// The delay keeps the trial from finishing before the interrupt.
	cmd.Env = append(os.Environ(), "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl, "TMPDIR="+folder,
		fmt.Sprintf("SOFTGPU_LAG=%d", delay))
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	deadline := time.Now().Add(time.Minute)
	for countRanksWithLogs(cmd.Process.Pid) < ranks {
		if time.Now().After(deadline) { // systest ends the process
			t.Fatal("the ranks did not open their logs within a minute")
		}
	}

	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait() // the exit code is checked below
	code, wantCode := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGINT)
	if code != wantCode || !strings.Contains(stdout.String(), "interrupted the trial") {
		t.Errorf("exit code %d, standard output %q; want %d and a report of the signal", code, &stdout,
			wantCode)
	}

	if remaining, err := os.ReadDir(folder); err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

// countRanksWithLogs counts a process's children that have opened NCCL's log. The log is a file
// whose name has been deleted. Shared memory (memfd) looks similar.
func countRanksWithLogs(parent int) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is valid
	children := map[int]bool{}                     // set of process IDs
	for _, link := range links {
		processFolder := filepath.Dir(filepath.Dir(link))
		pid, _ := strconv.Atoi(filepath.Base(processFolder)) // such a folder belongs to a process
		target, _ := os.Readlink(link)                       // "" if the process has exited
		isDeleted := strings.HasSuffix(target, " (deleted)")
		isMemory := strings.HasPrefix(target, "/memfd:")
		if isDeleted && !isMemory && parentOf(pid) == parent {
			children[pid] = true
		}
	}

	return len(children)
}

// TestDoctorScripts runs the scripts in testdata/doctor, without a GPU and on software GPUs. In
// them, $CUDA and $NCCL name the software GPU's libraries, and $EXAMPLES names a folder of scripts
// that start ranks. The scripts see no real GPU.
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

	commandFolder := filepath.Dir(symmemBinary(t)) // so that scripts run the real command
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/doctor",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CUDA", cuda)
			e.Setenv("NCCL", nccl)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("MASTER_PORT", strconv.Itoa(heldPort(t)))
			e.Setenv("PATH", commandFolder+string(filepath.ListSeparator)+pathWithoutMPS(t))
			temporary := filepath.Join(e.WorkDir, "tmp")
			e.Setenv("TMPDIR", temporary)
			if err := os.MkdirAll(temporary, 0o700); err != nil {
				return err
			}

			return hideGPUs(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": checkExitCode},
	})
}

// mpsProgram starts NVIDIA's Multi-Process Service (MPS).
const mpsProgram = "nvidia-cuda-mps-control"

// pathWithoutMPS returns PATH without mpsProgram. A folder of links to all other programs replaces
// the folder that contains it.
func pathWithoutMPS(t *testing.T) string {
	t.Helper()
	folders := filepath.SplitList(os.Getenv("PATH"))
	for i, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, mpsProgram)); err != nil {
			continue // the folder does not contain the program
		}

		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}

		replacement := t.TempDir()
		folders[i] = replacement
		for _, e := range entries {
			if e.Name() == mpsProgram {
				continue
			}

			link := filepath.Join(replacement, e.Name())
			if err := os.Symlink(filepath.Join(folder, e.Name()), link); err != nil {
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
	_, wantVerdict, ok := strings.Cut(stdout, "\nhost backend: ") // the last line
	if !ok {
		t.Fatalf("the output contains no verdict: %s", stdout)
	}

	for name, home := range map[string]string{
		"HOME is empty":        "",
		"HOME is not a folder": os.DevNull,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", home)
			t.Setenv("XDG_CONFIG_HOME", "")
			code, stdout, stderr := runSymmem(t, "doctor", "--backend=host")
			if code != exitOK || !strings.HasSuffix(stdout, wantVerdict) {
				t.Errorf("exit code %d, want %d and the verdict %q\n%s%s", code, exitOK, wantVerdict, stdout,
					stderr)
			}
		})
	}
}
