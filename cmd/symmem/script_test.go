package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts and the other tests run the command as a process: this test binary under its name.
// Under the race detector each of hundreds would sleep for a second before it ends, in which a race
// might still come up; but what a command leaves running has no second either.
func TestMain(m *testing.M) {
	const options = "GORACE"
	if os.Getenv(options) == "" {
		os.Setenv(options, "atexit_sleep_ms=10")
	}
	testscript.Main(m, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

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

// exits runs a program and demands its exit code: exits 2 symmem verify --bogus.
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
		ts.Fatalf("%v exited with %d, not %d", args[1:], code, want)
	}
}
