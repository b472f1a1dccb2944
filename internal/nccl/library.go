package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL.
type Library struct {
	binding
	origin string
	cells  *cells
}

func newLibrary(library *dl.Library, origin string) (*Library, error) {
	l := &Library{binding: binding{library: library}, origin: origin, cells: new(cells)}
	for _, f := range table {
		symbol, _ := library.Find(f.name)
		l.symbols = append(l.symbols, symbol)
	}

	if l.symbols[getVersion] == 0 {
		return nil, fmt.Errorf("%w: %s has no ncclGetVersion", ErrNoLibrary, library.Path())
	}

	version := dl.NewCell(int32(0))
	err := l.call(getVersion, version.Address())
	l.version = int(version.Take())
	if err != nil {
		return nil, err
	}

	return l, nil
}

// WithStep returns a Library that runs a step before each call, on the same thread. It does not
// support groups, because NCCL keeps groups per thread.
func (l *Library) WithStep(step dl.Step) *Library {
	copied := *l
	copied.stepBefore = step
	return &copied
}

// Origin describes where Load found the library.
func (l *Library) Origin() string { return l.origin }

// HasWindows reports whether the library can register windows, which requires NCCL 2.27.3. Some
// communicators do not support windows.
func (l *Library) HasWindows() bool { return l.isUsable(commWindowRegister) }

// CanSuspend reports whether the library can suspend communicators, which requires NCCL 2.29.7.
func (l *Library) CanSuspend() bool { return l.isUsable(commSuspend) }

// HasAlltoAll reports whether the library has AlltoAll, which requires NCCL 2.28.3.
func (l *Library) HasAlltoAll() bool { return l.isUsable(alltoAll) }

// binding calls the C functions of a loaded NCCL.
type binding struct {
	library    *dl.Library
	symbols    []dl.Symbol // by function; 0 if the library lacks the function
	version    int         // such as 22809 for NCCL 2.28.9
	stepBefore dl.Step     // see Library.WithStep; the zero Step does nothing
}

// Version returns the version as a number, such as 22809, and as text, such as "2.28.9".
func (b *binding) Version() (code int, text string) { return b.version, VersionText(b.version) }

// Path returns the path of the loaded file.
func (b *binding) Path() string { return b.library.Path() }

// isUsable reports whether the library has f, and is new enough for it.
func (b *binding) isUsable(f function) bool {
	return b.symbols[f] != 0 && b.version >= table[f].since
}

func (b *binding) newVersionError(f function) error {
	return &VersionError{
		Call: table[f].name, Need: table[f].since, Have: b.version, Path: b.Path(),
	}
}

// call calls a function that returns a Result.
func (b *binding) call(f function, args ...uintptr) error {
	if !b.isUsable(f) {
		return b.newVersionError(f)
	}

	status, isCalled := b.symbols[f].CallAfterStep(&b.stepBefore, args...)
	return b.resultError(f, status, isCalled)
}

// resultError returns the error of a call, or nil. If isCalled is false, f was not called, because
// stepBefore failed with the status.
func (b *binding) resultError(f function, status int32, isCalled bool) error {
	switch {
	case !isCalled:
		return b.stepBefore.NewError(status)
	case Result(status) != Success:
		return b.newError(f, Result(status))
	default:
		return nil
	}
}

func (b *binding) newError(f function, result Result) error {
	return &Error{
		Call: table[f].name, Code: result, Text: b.ErrorString(result), Last: b.LastError(),
	}
}

// ErrorString describes a result. Any thread can call it.
func (b *binding) ErrorString(result Result) string {
	symbol := b.symbols[getErrorString]
	if symbol == 0 {
		return result.Error()
	}

	return dl.GoString(symbol.Call(uintptr(result)))
}

// LastError returns the last warning of NCCL in this process, or "". Any thread can call it.
func (b *binding) LastError() string {
	symbol := b.symbols[getLastError]
	if symbol == 0 {
		return ""
	}

	const comm = 0 // NCCL ignores this argument.
	return dl.GoString(symbol.Call(comm))
}

// VersionSuspend is the first version that can suspend communicators, 2.29.7.
const VersionSuspend = 22907

// VersionWindows is the first version with symmetric windows, 2.27.3.
const VersionWindows = 22703

// function is a function of NCCL. Its value is an index in table.
type function uint8

type entry struct {
	name  string
	since int // first version with a usable function, or 0
}

var table []entry // filled by declare

func declare(name string, since int) function {
	table = append(table, entry{name, since})
	return function(len(table) - 1)
}

var (
	getVersion           = declare("ncclGetVersion", 0)
	getErrorString       = declare("ncclGetErrorString", 0)
	getLastError         = declare("ncclGetLastError", 21304)
	getUniqueID          = declare("ncclGetUniqueId", 0)
	commInitRankScalable = declare("ncclCommInitRankScalable", 22304)
	commAbort            = declare("ncclCommAbort", 0)
	commDestroy          = declare("ncclCommDestroy", 0)
	commGetAsyncError    = declare("ncclCommGetAsyncError", 0)
	commCount            = declare("ncclCommCount", 0)
	commCuDevice         = declare("ncclCommCuDevice", 0)
	commUserRank         = declare("ncclCommUserRank", 0)
	commWindowRegister   = declare("ncclCommWindowRegister", VersionWindows)
	commWindowDeregister = declare("ncclCommWindowDeregister", VersionWindows)
	commSuspend          = declare("ncclCommSuspend", VersionSuspend)
	commResume           = declare("ncclCommResume", VersionSuspend)
	createPreMulSum      = declare("ncclRedOpCreatePreMulSum", 0)
	redOpDestroy         = declare("ncclRedOpDestroy", 0)
	groupStart           = declare("ncclGroupStart", 0)
	groupEnd             = declare("ncclGroupEnd", 0)
	allReduce            = declare("ncclAllReduce", 0)
	broadcast            = declare("ncclBroadcast", 0)
	reduce               = declare("ncclReduce", 0)
	allGather            = declare("ncclAllGather", 0)
	reduceScatter        = declare("ncclReduceScatter", 0)
	alltoAll             = declare("ncclAlltoAll", 22803)
	send                 = declare("ncclSend", 0)
	recv                 = declare("ncclRecv", 0)
)

// VersionText formats a version code, for example 22809 as "2.28.9". Up to NCCL 2.8, version codes
// have four digits (NCCL_VERSION in nccl.h).
func VersionText(code int) string {
	major, minor := code/10000, code/100%100
	hasFourDigits := code < 10000
	if hasFourDigits {
		major, minor = code/1000, code/100%10
	}

	return fmt.Sprintf("%d.%d.%d", major, minor, code%100)
}
