package main

import "fmt"

// The exit codes of commands. A command that runs others, such as launch, exits as they do; one
// that was ended by a signal exits with 128 and the signal's number, as shells have it.
const (
	// exitOK: all went well.
	exitOK = 0
	// exitWrong: ranks computed something wrong, or differ.
	exitWrong = 1
	// exitUsage: the command could not run, or not to its end: a wrong flag, a rank that was
	// lost.
	exitUsage = 2
)

// exitError ends the command with a code. An error without err was printed already.
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

// exitWith is an error that ends the command with a code, or nil for code 0 without an error.
func exitWith(code int, err error) error {
	if code == exitOK && err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}
