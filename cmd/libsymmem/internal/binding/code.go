package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem"
)

// Code is the result of a function in symmem.h: SYMMEM_OK or one of SYMMEM_ERR_*.
type Code int

// symmem.h describes the values. They are part of the ABI, so they must not change.
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

// String returns the name in symmem.h without SYMMEM_ or SYMMEM_ERR_.
func (c Code) String() string {
	if c >= 0 && c < numCodes {
		return codeNames[c]
	}

	return fmt.Sprintf("code %d", int(c))
}

var (
	// ErrNotOpen reports a call before Open or after Close.
	ErrNotOpen = errors.New("symmem is not open: call symmem_open (symmem.init in Python) first")
	// ErrLive reports that live buffers prevent a close.
	ErrLive = errors.New("buffers are still live: free them first, or force the close")
	// ErrPanic reports a panic inside symmem.
	ErrPanic = errors.New("panic inside symmem")
)

// errorCodes is in order of precedence. Causes precede consequences: ErrClosed, for example, is a
// consequence.
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

// CodeOf returns the code of an error. If the error wraps several errors, the first match counts.
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

// isDivergence reports whether ranks made calls that differ or wait for each other.
func isDivergence(err error) bool {
	return errors.As(err, new(*symmem.DivergenceError)) ||
		errors.As(err, new(*symmem.MismatchError)) ||
		errors.As(err, new(*symmem.DeadlockError)) ||
		isMessageError(err)
}

// isMessageError reports whether the error is a mismatch between a send and a receive.
func isMessageError(err error) bool {
	return errors.As(err, new(*symmem.MessageError))
}

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

// Message returns the text of err, followed by advice for code c.
func (c Code) Message(err error) string {
	text := err.Error()
	advice, hasAdvice := adviceByCode[c]
	if hasAdvice && !isValueDivergence(err) { // the advice is about calls, not values
		text += "; " + advice
	}

	if c == CodeDivergence && !isMessageError(err) && !namesCallSite(err) {
		text += "; set SYMMEM_CALLSITES=1 to see the source lines"
	}

	return text
}

// isValueDivergence reports whether ranks made the same call with different values.
func isValueDivergence(err error) bool {
	divergence, ok := errors.AsType[*symmem.DivergenceError](err)
	return ok && divergence.Kind == symmem.DivergedValue
}

func namesCallSite(err error) bool {
	divergence, ok := errors.AsType[*symmem.DivergenceError](err)
	hasSite := func(side symmem.Side) bool { return side.Site != "" }
	return ok && slices.ContainsFunc(divergence.Sides, hasSite)
}
