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

// The scripts run the command as a process: this test binary under its name. Other tests run it as
// it is built for users: see command.
//
// Under the race detector each process would sleep for a second before it ends, in which a race
// might still come up; but what a command leaves running has no second either.
func TestMain(m *testing.M) {
	const options = "GORACE"
	if os.Getenv(options) == "" {
		os.Setenv(options, "atexit_sleep_ms=10")
	}
	testscript.Main(removing{m}, map[string]func(){
		"symmem": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// removing are tests that leave no command behind.
type removing struct{ *testing.M }

func (m removing) Run() int {
	defer func() { os.RemoveAll(commands) }() // which is made meanwhile
	return m.M.Run()
}

// commands is the folder of the command, once that is built.
var commands string

// command returns the path of the command as it is built for users. Under the race detector ranks
// that poll, also while the software GPU runs, take several times as long: the command is run with
// it by the scripts, and what it calls is tested with it in its packages.
func command(t *testing.T) string {
	t.Helper()
	path, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var compiled = sync.OnceValues(func() (path string, err error) {
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
