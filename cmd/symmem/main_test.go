package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run this test binary as the command symmem. Other tests build and run the
// real binary (see symmemBinary).
func TestMain(m *testing.M) {
	const raceOptions = "GORACE" // read by the race detector
	if os.Getenv(raceOptions) == "" {
		os.Setenv(raceOptions, "atexit_sleep_ms=10") // by default, a process sleeps for a second
	}

	testscript.Main(mainWithCleanup{m}, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// noGPU lists variables that hide the machine's GPUs from tests. Tests use the host backend or the
// software GPU.
var noGPU = map[string]string{
	"SYMMEM_CUDA": "/nowhere/libcuda.so.1",
	"SYMMEM_NVML": "/nowhere/libnvidia-ml.so.1",
}

// hideGPUs sets the variables of noGPU for a script.
func hideGPUs(e *testscript.Env) error {
	for name, value := range noGPU {
		e.Setenv(name, value)
	}

	return nil
}

// mainWithCleanup hides the GPUs, runs the tests and removes the binary that they built.
type mainWithCleanup struct{ *testing.M }

func (m mainWithCleanup) Run() int {
	for name, value := range noGPU {
		os.Setenv(name, value)
	}

	defer func() { os.RemoveAll(binaryFolder) }()
	return m.M.Run()
}

var binaryFolder string // created by buildBinary

// symmemBinary builds the real binary on the first call, and returns its path. The binary is built
// without the race detector, which makes polling ranks several times slower.
func symmemBinary(t *testing.T) string {
	t.Helper()
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}

	return path
}

var buildBinary = sync.OnceValues(func() (path string, err error) {
	if binaryFolder, err = os.MkdirTemp("", "symmem-command-"); err != nil {
		return "", err
	}

	path = filepath.Join(binaryFolder, "symmem")
	output, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the command: %w\n%s", err, output)
	}

	return path, nil
})

// TestScripts runs the scripts in testdata/script. They run this test binary as symmem.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               hideGPUs,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": checkExitCode,
		},
	})
}

// checkExitCode runs a program and checks its exit code, as in "exits 2 symmem verify --bogus".
// The command cannot be negated by "!".
func checkExitCode(ts *testscript.TestScript, isNegated bool, args []string) {
	if isNegated || len(args) < 2 {
		ts.Fatalf("usage: exits code command [argument ...]")
	}

	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	command := args[1:]
	err = ts.Exec(command[0], command[1:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err) // the program could not be run
	}

	if code != want {
		ts.Fatalf("%v exited with code %d, want %d", command, code, want)
	}
}
