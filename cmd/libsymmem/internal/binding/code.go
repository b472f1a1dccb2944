package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

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

// These errors can be wrapped by others.
var (
	// ErrNotOpen reports a call before Open or after Close.
	ErrNotOpen = errors.New("symmem is not open: call symmem_open (symmem.init in Python) first")
	// ErrLive reports that live buffers prevent a close.
	ErrLive = errors.New("buffers are still live: free them first, or force the close")
	// ErrPanic reports a panic inside symmem.
	ErrPanic = errors.New("panic inside symmem")
)

// errorCodes maps errors to codes. An error can wrap several of these errors. CodeOf uses the first
// one in this list, so causes precede their effects.
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

// CodeOf returns the code of an error.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}

	switch { // errorCodes has the errors without a type
	case errors.Is(err, symmem.ErrInterrupted):
		return CodeInterrupted
	case errors.As(err, new(*symmem.DivergenceError)),
		errors.As(err, new(*symmem.MismatchError)),
		errors.As(err, new(*symmem.DeadlockError)),
		isMessageError(err):
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

// adviceByCode has a text for the codes after which callers can do something. Message appends it to
// an error's text.
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

// Message returns the text of err, whose code is c, followed by advice for the code.
func (c Code) Message(err error) string {
	text := err.Error()
	advice := adviceByCode[c]
	// If ranks passed different values, their calls were the same, so the advice does not fit.
	if advice != "" && !isValueDivergence(err) {
		text += "; " + advice
	}

	canHaveCallSites := c == CodeDivergence && !isMessageError(err)
	if canHaveCallSites && !hasCallSites(err) {
		text += "; set SYMMEM_CALLSITES=1 to see the source lines"
	}

	return text
}

// isMessageError reports whether the error concerns a send or a receive.
func isMessageError(err error) bool {
	return errors.As(err, new(*symmem.MessageError))
}

// isValueDivergence reports whether ranks passed different values to a comparison, such as Agree.
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
