package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
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

// Doctor starts ranks to try a backend. The test sends a signal while both ranks run.
func TestInterruptedDoctorReportsAndCleansUp(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the software GPU")
	}

	const ranks = 2
	temporaryFolder := t.TempDir()
	cmd := newSlowDoctor(t, ranks, temporaryFolder)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	deadline := time.Now().Add(time.Minute)
	for countRanksWithLogs(cmd.Process.Pid) < ranks {
		if time.Now().After(deadline) {
			t.Fatal("the ranks did not open their logs within a minute")
		}
	}

	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait() // the error repeats the exit code, checked below
	code := cmd.ProcessState.ExitCode()
	const wantCode = 128 + int(syscall.SIGINT)
	if code != wantCode || !strings.Contains(stdout.String(), "interrupted the trial") {
		t.Errorf("exit code %d, standard output %q; want %d and a report of the signal", code, &stdout,
			wantCode)
	}

	remaining, err := os.ReadDir(temporaryFolder)
	if err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
}

// newSlowDoctor returns the command symmem doctor with a slow software GPU, to leave time for a
// signal.
func newSlowDoctor(t *testing.T, ranks int, temporaryFolder string) *exec.Cmd {
	t.Helper()
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	cmd := systest.Command(t, systest.Patience, symmemBinary(t), "doctor", "--backend=nccl",
		fmt.Sprintf("--ranks=%d", ranks))
	const microsecondsPerOperation = 1_000_000
	cmd.Env = append(os.Environ(), "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
		"TMPDIR="+temporaryFolder, fmt.Sprintf("SOFTGPU_LAG=%d", microsecondsPerOperation))
	return cmd
}

// countRanksWithLogs counts the child processes that have opened NCCL's log, an unlinked file that
// /proc shows as "/tmp/#123 (deleted)".
func countRanksWithLogs(parent int) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // fails only for an invalid pattern
	children := map[int]bool{}                     // keyed by process ID
	for _, link := range links {
		processFolder := filepath.Dir(filepath.Dir(link))
		pid, _ := strconv.Atoi(filepath.Base(processFolder)) // a number, by the pattern
		file, _ := os.Readlink(link)                         // "" if the process has exited
		isUnlinked := strings.HasSuffix(file, " (deleted)")
		isSharedMemory := strings.HasPrefix(file, "/memfd:") // also "(deleted)"
		isLog := isUnlinked && !isSharedMemory
		if isLog && parentOf(pid) == parent {
			children[pid] = true
		}
	}

	return len(children)
}

// TestDoctorScripts runs the scripts in testdata/doctor, which use these variables:
//
//	CUDA, NCCL   libraries of the software GPU
//	EXAMPLES     folder of shell scripts that start ranks
//	MASTER_PORT  port that these ranks can use
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

	commandFolder := filepath.Dir(symmemBinary(t))
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

// mpsProgram starts NVIDIA's Multi-Process Service (MPS). Doctor looks for it in PATH.
const mpsProgram = "nvidia-cuda-mps-control"

// pathWithoutMPS returns PATH without mpsProgram. It replaces each folder that contains the program
// with a folder of links to the other programs.
func pathWithoutMPS(t *testing.T) string {
	t.Helper()
	folders := filepath.SplitList(os.Getenv("PATH"))
	for i, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, mpsProgram)); err != nil {
			continue
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

func TestDoctorWithoutHomeDirectory(t *testing.T) {
	_, stdout, _ := runSymmem(t, "doctor", "--backend=host")
	_, wantVerdict, hasVerdict := strings.Cut(stdout, "\nhost backend: ") // the last line
	if !hasVerdict {
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
