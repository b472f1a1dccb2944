package driver

import "errors"

// ErrInterrupted is the cause of waits that end because their caller was asked and wants them to:
// see Config.Interrupted.
var ErrInterrupted = errors.New("interrupted")
