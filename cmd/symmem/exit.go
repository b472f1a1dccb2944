package main

import "fmt"

// Exit codes of the commands. launch exits with the code of its program. A command that is killed
// by signal n exits with 128+n, as in shells.
const (
	exitOK     = 0
	exitWrong  = 1 // ranks computed a wrong result or diverged
	exitFailed = 2 // the command could not run or could not finish
)

// exitError makes the command exit with a code. If err is nil, the error has already been printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}

	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith returns an error that makes the command exit with code. If the code is exitOK and err is
// nil, it returns nil.
func exitWith(code int, err error) error {
	if code == exitOK && err == nil {
		return nil
	}

	return &exitError{code: code, err: err}
}
