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

// TestMain lets scripts run the command by executing this test binary under the command's name.
// Other tests build and run the real binary (see command).
//
// By default, the race detector makes each process sleep for a second before it exits. TestMain
// shortens that time.
func TestMain(m *testing.M) {
	const options = "GORACE"
	if os.Getenv(options) == "" {
		os.Setenv(options, "atexit_sleep_ms=10")
	}
	testscript.Main(cleanupM{m}, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

type cleanupM struct{ *testing.M }

func (m cleanupM) Run() int {
	defer func() { os.RemoveAll(commands) }() // buildCommand creates the folder
	return m.M.Run()
}

var commands string

// command builds the real binary and returns its path. It never uses the race detector, which makes
// polling ranks several times slower.
func command(t *testing.T) string {
	t.Helper()
	path, err := buildCommand()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildCommand = sync.OnceValues(func() (path string, err error) {
	if commands, err = os.MkdirTemp("", "symmem-command-"); err != nil {
		return "", err
	}
	path = filepath.Join(commands, "symmem")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("compiling the command: %w\n%s", err, out)
	}
	return path, nil
})

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

// exits runs a program and checks its exit code, as in "exits 2 symmem verify --bogus".
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command [argument ...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("%v exited with code %d, want %d", args[1:], code, want)
	}
}
