package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Tests run the command symmem in three ways: they call run in this process, they let scripts start
// this test binary, which then acts as symmem, or they build and start the real binary.

// runInProcess runs symmem in this process, and returns its exit code and output. The first
// argument is the name of the subcommand.
func runInProcess(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer bytes.Buffer
	var errBuffer bytes.Buffer
	noInput := strings.NewReader("")
	code = run(t.Context(), args, noInput, &outBuffer, &errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

// TestMain runs the tests or, if a script has started this binary as symmem, the command.
func TestMain(m *testing.M) {
	const raceOptions = "GORACE" // read by the race detector
	if os.Getenv(raceOptions) == "" {
		// By default, a process sleeps for a second before it exits.
		os.Setenv(raceOptions, "atexit_sleep_ms=10")
	}

	testscript.Main(mainWithCleanup{m}, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// mainWithCleanup hides the machine's GPUs, runs the tests, and removes the real binary.
type mainWithCleanup struct{ *testing.M }

func (m mainWithCleanup) Run() int {
	for name, value := range noGPU {
		os.Setenv(name, value)
	}

	defer func() { os.RemoveAll(binaryFolder) }()
	return m.M.Run()
}

// noGPU lists variables that hide the machine's GPUs: they name libraries that do not exist. Tests
// use the host backend, or replace SYMMEM_CUDA by the software GPU.
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

var binaryFolder string // contains the real binary; "" until buildBinary creates it

// symmemBinary returns the path of the real binary. The first call builds it, without the race
// detector: with it, ranks that poll would be several times slower.
func symmemBinary(t *testing.T) string {
	t.Helper()
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}

	return path
}

// buildBinary builds the real binary in a new binaryFolder, once, and returns its path.
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

// TestScripts runs the scripts in testdata/script, in which symmem is this test binary.
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

// checkExitCode implements the statement "exits" in scripts. For example, the statement
// "exits 2 symmem verify --bogus" runs symmem, and the test fails if the exit code is not 2.
func checkExitCode(ts *testscript.TestScript, isNegated bool, args []string) {
	if isNegated || len(args) < 2 { // a leading "!" negates a statement
		ts.Fatalf("usage: exits code command [argument ...]")
	}

	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	command := args[1:]
	code := 0
	err = ts.Exec(command[0], command[1:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err) // fails if the program could not be run
	}

	if code != want {
		ts.Fatalf("%v exited with code %d, want %d", command, code, want)
	}
}
