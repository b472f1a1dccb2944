package dl

// maxPrepared is the largest number of arguments of an Invocation, and of a direct call: six in
// registers, six on the stack.
const maxPrepared = 12

// frame is a call on its way, as call_amd64.s reads it.
type frame struct {
	function  uintptr
	arguments [maxPrepared]uintptr
	// first and argument are the call that is made before, if first is not 0.
	first, argument uintptr
	// result is where all 64 bits of the result go, or 0.
	result uintptr
}

// Invocation is a StatusAfter that is made again and again with nearly the same arguments. All that
// is left to do for each is the entry to C, where a list of arguments would go through several
// functions: of code that is not in a processor's cache, as between two calls of a large library,
// each costs tens of nanoseconds. The zero value is no call. It is used by one goroutine at a time.
type Invocation struct {
	frame frame
	count int
}

// Prepare makes an Invocation. It panics if there are more than twelve arguments.
//
// Preconditions: those of StatusAfter, at each call.
func (s Symbol) Prepare(first *Step, args ...uintptr) Invocation {
	if len(args) > maxPrepared {
		panic("dl: too many arguments for an invocation")
	}
	i := Invocation{count: len(args)}
	i.frame.function = uintptr(s)
	i.frame.first, i.frame.argument = uintptr(first.Function), first.Argument
	copy(i.frame.arguments[:], args)
	return i
}

// Ready reports whether there is a call.
func (i *Invocation) Ready() bool { return i.frame.function != 0 }

// Set changes argument n, counted from 0, or adds it behind the last one.
func (i *Invocation) Set(n int, value uintptr) {
	i.frame.arguments[n] = value
	i.count = max(i.count, n+1)
}

// Status makes the call. See StatusAfter.
func (i *Invocation) Status() (status int32, ok bool) {
	if maxPrepared <= directArguments {
		return directStatus(&i.frame)
	}
	f := &i.frame
	return generalAfter(f.first, f.argument, Symbol(f.function), f.arguments[:i.count])
}
