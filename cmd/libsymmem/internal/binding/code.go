package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// Code is the result of a function in symmem.h: SYMMEM_OK or one of SYMMEM_ERR_*.
type Code int

// The codes in symmem.h. Their values are part of the interface.
const (
	OK Code = iota
	Invalid
	Closed
	Unsupported
	OutOfMemory
	Size
	DoubleFree
	Freed
	Foreign
	Capturing
	OutOfRange
	Aborted
	Divergence
	Timeout
	RankLost
	Forked
	NotOpen
	Live
	Short
	Panic
	Failed
	Interrupted
	Busy
	Suspended
	numCodes
)

var codeNames = [numCodes]string{
	"OK", "INVALID", "CLOSED", "UNSUPPORTED", "OUT_OF_MEMORY", "SIZE", "DOUBLE_FREE", "FREED",
	"FOREIGN", "CAPTURING", "OUT_OF_RANGE", "ABORTED", "DIVERGENCE", "TIMEOUT", "RANK_LOST",
	"FORKED", "NOT_OPEN", "LIVE", "SHORT", "PANIC", "FAILED",
	"INTERRUPTED", "BUSY", "SUSPENDED",
}

// String returns the code's name in symmem.h, without the prefix SYMMEM_ or SYMMEM_ERR_.
func (c Code) String() string {
	if c >= 0 && c < numCodes {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", int(c))
}

// These errors are wrapped; use errors.Is.
var (
	// ErrNotOpen is returned before Open and after Close.
	ErrNotOpen = errors.New("symmem is not open: call symmem_open (symmem.init in Python) first")
	// ErrLive is returned if a pool cannot be closed because it has live buffers.
	ErrLive = errors.New("buffers are still live: free them first, or force the close")
	// ErrPanic reports a panic inside symmem.
	ErrPanic = errors.New("panic inside symmem")
)

// errorCodes maps errors to codes. CodeOf uses the first entry that an error wraps, so causes
// precede their consequences.
var errorCodes = []struct {
	err  error
	code Code
}{
	{ErrPanic, Panic},
	{ErrNotOpen, NotOpen},
	{ErrLive, Live},
	{symmem.ErrCapturing, Capturing},
	{symmem.ErrOutOfMemory, OutOfMemory},
	{symmem.ErrBusy, Busy},
	{symmem.ErrSuspended, Suspended},
	{symmem.ErrSize, Size},
	{symmem.ErrDoubleFree, DoubleFree},
	{symmem.ErrFreed, Freed},
	{symmem.ErrForeign, Foreign},
	{symmem.ErrOutOfRange, OutOfRange},
	{symmem.ErrAborted, Aborted},
	{symmem.ErrClosed, Closed},
	{symmem.ErrUnsupported, Unsupported},
	{symmem.ErrInvalid, Invalid},
	{context.DeadlineExceeded, Timeout},
}

// CodeOf returns the code of an error.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	switch {
	case errors.Is(err, symmem.ErrInterrupted):
		return Interrupted
	case errors.As(err, new(*symmem.DivergenceError)), errors.As(err, new(*symmem.MismatchError)),
		errors.As(err, new(*symmem.DeadlockError)), isMessageError(err):
		return Divergence
	case errors.As(err, new(*symmem.RankLostError)):
		return RankLost
	case errors.As(err, new(*symmem.TimeoutError)):
		return Timeout
	}
	for _, entry := range errorCodes {
		if errors.Is(err, entry.err) {
			return entry.code
		}
	}
	return Failed
}

// adviceByCode maps codes to advice that Message appends to an error's text.
var adviceByCode = map[Code]string{
	OutOfMemory: "free memory, raise the capacity of the pool, or reserve memory early",
	DoubleFree:  "this pointer was freed before, or was never allocated",
	Capturing:   "register or reserve before the capture begins",
	Divergence:  "ranks must make the same allocations and calls in the same order",
	Timeout: "find out why those ranks are late, or raise the timeout: that of the process group " +
		"in torch.distributed, symmem.init(timeout=...) in Python, timeout_ms of symmem_open in C",
	RankLost: "read the output of those ranks; their groups have failed",
	Panic:    "please report this, with the message",
}

// Message returns an error's text, followed by advice for the code.
func (c Code) Message(err error) string {
	text := err.Error()
	if advice := adviceByCode[c]; advice != "" && !isValueDivergence(err) {
		text += "; " + advice
	}
	if c == Divergence && !isMessageError(err) && !hasCallSites(err) {
		text += "; set SYMMEM_CALLSITES=1 to see the lines"
	}
	return text
}

// isMessageError reports whether err is about sends and receives, which have no call sites.
func isMessageError(err error) bool {
	return errors.As(err, new(*symmem.MessageError))
}

// isValueDivergence reports whether err says that ranks passed different values, which does not
// make the group fail.
func isValueDivergence(err error) bool {
	var divergence *symmem.DivergenceError
	return errors.As(err, &divergence) && divergence.Kind == symmem.DivergedValue
}

func hasCallSites(err error) bool {
	divergence, ok := errors.AsType[*symmem.DivergenceError](err)
	if !ok {
		return false
	}
	for _, side := range divergence.Sides {
		if side.Site != "" {
			return true
		}
	}
	return false
}
