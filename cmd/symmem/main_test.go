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

// Tests run symmem in this process (runInProcess), start this test binary as symmem (TestScripts),
// or build the real binary (symmemBinary).

// runInProcess runs symmem in this process. args begins with the subcommand.
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
	const raceOptions = "GORACE"
	if os.Getenv(raceOptions) == "" {
		// By default, the race detector makes processes sleep for a second before they exit.
		os.Setenv(raceOptions, "atexit_sleep_ms=10")
	}

	testscript.Main(testsWithoutGPU{m}, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// testsWithoutGPU hides the machine's GPUs, runs the tests, and removes the real binary.
type testsWithoutGPU struct{ *testing.M }

func (m testsWithoutGPU) Run() int {
	for name, value := range noGPU {
		os.Setenv(name, value)
	}

	defer func() { os.RemoveAll(binaryFolder) }()
	return m.M.Run()
}

// noGPU hides the machine's GPUs by naming libraries that do not exist. Tests of the software GPU
// replace SYMMEM_CUDA.
var noGPU = map[string]string{
	"SYMMEM_CUDA": "/nowhere/libcuda.so.1",
	"SYMMEM_NVML": "/nowhere/libnvidia-ml.so.1",
}

func hideGPUs(e *testscript.Env) error {
	for name, value := range noGPU {
		e.Setenv(name, value)
	}

	return nil
}

var binaryFolder string // of the real binary; "" until buildBinary creates it

// symmemBinary returns the path of the real binary. It is built without the race detector, which
// slows down ranks that poll.
func symmemBinary(t *testing.T) string {
	t.Helper()
	path, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}

	return path
}

// buildBinary builds the real binary once.
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

// checkExitCode implements the script command "exits", such as "exits 2 symmem verify --bogus",
// which expects exit code 2.
func checkExitCode(ts *testscript.TestScript, isNegated bool, args []string) {
	hasCommand := len(args) >= 2
	if isNegated || !hasCommand { // a leading "!" negates a command
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
		ts.Check(err) // fails if the command could not be run
	}

	if code != want {
		ts.Fatalf("%v exited with code %d, want %d", command, code, want)
	}
}
