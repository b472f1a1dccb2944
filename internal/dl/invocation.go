package dl

// maxPrepared is the maximum number of arguments of an Invocation and of a direct call. Six of
// them are passed in registers and six on the stack.
const maxPrepared = 12

type frame struct {
	function  uintptr
	arguments [maxPrepared]uintptr
	// step is a function to call with argument before function, or 0 if there is none.
	step, argument uintptr
	// result is the address at which the 64-bit result is stored, or 0.
	result uintptr
}

// Invocation is a prepared StatusAfter for repeated calls with nearly the same arguments. Its calls
// enter C directly, whereas StatusAfter passes its arguments through several functions, each of
// which costs tens of nanoseconds if the instruction caches are cold, as they are between two calls
// of a large library. The zero value is not ready. An Invocation is not safe for concurrent use.
type Invocation struct {
	frame frame
	count int
}

// Prepare returns an Invocation. It panics if there are more than twelve arguments.
//
// Preconditions: each call of Status must satisfy the preconditions of StatusAfter.
func (s Symbol) Prepare(step *Step, args ...uintptr) Invocation {
	if len(args) > maxPrepared {
		panic("dl: too many arguments for an invocation")
	}
	i := Invocation{count: len(args)}
	i.frame.function = uintptr(s)
	i.frame.step, i.frame.argument = uintptr(step.Function), step.Argument
	copy(i.frame.arguments[:], args)
	return i
}

// Ready reports whether the Invocation is prepared.
func (i *Invocation) Ready() bool { return i.frame.function != 0 }

// Set sets argument n, counted from 0. It may also add one argument after the last.
func (i *Invocation) Set(n int, value uintptr) {
	i.frame.arguments[n] = value
	i.count = max(i.count, n+1)
}

// Status makes the call in the same way as StatusAfter.
func (i *Invocation) Status() (status int32, ok bool) {
	if maxPrepared <= directArguments {
		return directStatus(&i.frame)
	}
	f := &i.frame
	return generalAfter(f.step, f.argument, Symbol(f.function), f.arguments[:i.count])
}
