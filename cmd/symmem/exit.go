package main

import "fmt"

// The exit codes of the commands. A command that runs other programs, such as launch, exits with
// the code of those programs. A command that is killed by a signal exits with 128 plus the signal's
// number, as in shells.
const (
	// exitOK reports success.
	exitOK = 0
	// exitWrong reports that ranks computed a wrong result or diverged.
	exitWrong = 1
	// exitUsage reports that the command could not run or could not finish, for example because of
	// an invalid flag or a lost rank.
	exitUsage = 2
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

// exitWith returns an error that makes the command exit with code, or nil if the code is exitOK and
// err is nil.
func exitWith(code int, err error) error {
	if code == exitOK && err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}
