package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// Functions in symmem.h return a code instead of an error. If a pool has no memory left, for
// example, the code is SYMMEM_ERR_OUT_OF_MEMORY, and the caller can get a message. It consists of
// the text of the error and of advice: "...; free memory, raise the capacity of the pool, ...".

// Code is the result of a function in symmem.h: SYMMEM_OK or one of SYMMEM_ERR_*.
type Code int

// The codes in symmem.h. Their values must not change.
const (
	CodeOK Code = iota
	CodeInvalid
	CodeClosed
	CodeUnsupported
	CodeOutOfMemory
	CodeSize
	CodeDoubleFree
	CodeFreed
	CodeForeign
	CodeCapturing
	CodeOutOfRange
	CodeAborted
	CodeDivergence
	CodeTimeout
	CodeRankLost
	CodeForked
	CodeNotOpen
	CodeLive
	CodeShort
	CodePanic
	CodeFailed
	CodeInterrupted
	CodeBusy
	CodeSuspended
	numCodes
)

var codeNames = [numCodes]string{
	CodeOK:          "OK",
	CodeInvalid:     "INVALID",
	CodeClosed:      "CLOSED",
	CodeUnsupported: "UNSUPPORTED",
	CodeOutOfMemory: "OUT_OF_MEMORY",
	CodeSize:        "SIZE",
	CodeDoubleFree:  "DOUBLE_FREE",
	CodeFreed:       "FREED",
	CodeForeign:     "FOREIGN",
	CodeCapturing:   "CAPTURING",
	CodeOutOfRange:  "OUT_OF_RANGE",
	CodeAborted:     "ABORTED",
	CodeDivergence:  "DIVERGENCE",
	CodeTimeout:     "TIMEOUT",
	CodeRankLost:    "RANK_LOST",
	CodeForked:      "FORKED",
	CodeNotOpen:     "NOT_OPEN",
	CodeLive:        "LIVE",
	CodeShort:       "SHORT",
	CodePanic:       "PANIC",
	CodeFailed:      "FAILED",
	CodeInterrupted: "INTERRUPTED",
	CodeBusy:        "BUSY",
	CodeSuspended:   "SUSPENDED",
}

// String returns the code's name in symmem.h, without the prefix SYMMEM_ or SYMMEM_ERR_.
func (c Code) String() string {
	if c >= 0 && c < numCodes {
		return codeNames[c]
	}

	return fmt.Sprintf("code %d", int(c))
}

// Errors of this package. Other errors can wrap them.
var (
	// ErrNotOpen reports a call before Open or after Close.
	ErrNotOpen = errors.New("symmem is not open: call symmem_open (symmem.init in Python) first")
	// ErrLive reports that live buffers prevent a close.
	ErrLive = errors.New("buffers are still live: free them first, or force the close")
	// ErrPanic reports a panic inside symmem.
	ErrPanic = errors.New("panic inside symmem")
)

// CodeOf returns the code of an error. An error can wrap several errors, so CodeOf checks for the
// cause of a failure before its effects.
func CodeOf(err error) Code {
	switch {
	case err == nil:
		return CodeOK
	case errors.Is(err, symmem.ErrInterrupted):
		return CodeInterrupted
	case isDivergence(err):
		return CodeDivergence
	case errors.As(err, new(*symmem.RankLostError)):
		return CodeRankLost
	case errors.As(err, new(*symmem.TimeoutError)):
		return CodeTimeout
	}

	for _, entry := range errorCodes {
		if errors.Is(err, entry.err) {
			return entry.code
		}
	}

	return CodeFailed
}

// isDivergence reports whether the ranks made different calls, or passed different arguments.
func isDivergence(err error) bool {
	return errors.As(err, new(*symmem.DivergenceError)) ||
		errors.As(err, new(*symmem.MismatchError)) ||
		errors.As(err, new(*symmem.DeadlockError)) ||
		isMessageError(err)
}

// isMessageError reports whether the ranks' sends and receives do not match.
func isMessageError(err error) bool {
	return errors.As(err, new(*symmem.MessageError))
}

// errorCodes maps other errors to codes. CodeOf uses the first error of this list that it finds.
var errorCodes = []struct {
	err  error
	code Code
}{
	{ErrPanic, CodePanic},
	{ErrNotOpen, CodeNotOpen},
	{ErrLive, CodeLive},
	{symmem.ErrCapturing, CodeCapturing},
	{symmem.ErrOutOfMemory, CodeOutOfMemory},
	{symmem.ErrBusy, CodeBusy},
	{symmem.ErrSuspended, CodeSuspended},
	{symmem.ErrSize, CodeSize},
	{symmem.ErrDoubleFree, CodeDoubleFree},
	{symmem.ErrFreed, CodeFreed},
	{symmem.ErrForeign, CodeForeign},
	{symmem.ErrOutOfRange, CodeOutOfRange},
	{symmem.ErrAborted, CodeAborted},
	{symmem.ErrClosed, CodeClosed},
	{symmem.ErrUnsupported, CodeUnsupported},
	{symmem.ErrInvalid, CodeInvalid},
	{context.DeadlineExceeded, CodeTimeout},
}

// adviceByCode has advice for the codes after which callers can do something.
var adviceByCode = map[Code]string{
	CodeOutOfMemory: "free memory, raise the capacity of the pool, or reserve memory early",
	CodeDoubleFree:  "this pointer was freed before, or was never allocated",
	CodeCapturing:   "register or reserve before the capture begins",
	CodeDivergence:  "ranks must make the same allocations and calls in the same order",
	CodeTimeout: "find out why those ranks are late, or raise the timeout (of the process group in " +
		"torch.distributed, symmem.init(timeout=...) in Python, or timeout_ms of symmem_open in C)",
	CodeRankLost: "read the output of those ranks; their groups have failed",
	CodePanic:    "please report this, with the message",
}

// Message returns the text of an error with code c, followed by advice.
func (c Code) Message(err error) string {
	text := err.Error()
	advice := adviceByCode[c]
	if advice != "" && !isValueDivergence(err) {
		text += "; " + advice
	}

	canHaveCallSites := c == CodeDivergence && !isMessageError(err)
	lacksCallSites := canHaveCallSites && !hasCallSites(err)
	if lacksCallSites {
		text += "; set SYMMEM_CALLSITES=1 to see the source lines"
	}

	return text
}

// isValueDivergence reports whether ranks passed different values to a comparison, such as Agree.
// The ranks have then made the same calls, so the advice for a divergence does not fit.
func isValueDivergence(err error) bool {
	divergence, ok := errors.AsType[*symmem.DivergenceError](err)
	return ok && divergence.Kind == symmem.DivergedValue
}

// hasCallSites reports whether the error already names the source lines of the ranks' calls.
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
