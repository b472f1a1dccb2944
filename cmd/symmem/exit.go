package main

import "fmt"

// The commands' exit codes. A command that runs other programs, such as launch, exits with their
// code. A command that is ended by a signal exits with 128 plus the signal's number, as in shells.
const (
	// exitOK reports success.
	exitOK = 0
	// exitWrong reports that ranks computed a wrong result or diverged.
	exitWrong = 1
	// exitUsage reports that the command could not run or could not finish, for example because of
	// an invalid flag or a lost rank.
	exitUsage = 2
)

// exitError ends the command with a code. If err is nil, the error has already been printed.
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

// exitWith returns an error that ends the command with a code. It returns nil for code 0 without an
// error.
func exitWith(code int, err error) error {
	if code == exitOK && err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}
