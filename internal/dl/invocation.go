package dl

// maxPrepared is the maximum number of arguments of a frame. C passes six of them in registers, and
// the others on the stack.
const maxPrepared = 12

// frame describes a call for the assembly code in call_amd64.s, which relies on this layout.
type frame struct {
	function  uintptr              // to call
	arguments [maxPrepared]uintptr // of function
	step      uintptr              // function to call before, or 0
	argument  uintptr              // of step
	result    uintptr              // address at which to store the 64-bit result, or 0
}

// Invocation is a prepared CallAfterStep, for repeated calls with nearly the same arguments. It is
// not safe for concurrent use.
type Invocation struct {
	frame frame
	count int // number of arguments
}

// Prepare returns an Invocation with the preconditions of CallAfterStep. It panics if there are
// more than twelve arguments.
func (s Symbol) Prepare(step *Step, args ...uintptr) Invocation {
	if len(args) > maxPrepared {
		panic("dl: too many arguments for an invocation")
	}

	i := Invocation{count: len(args)}
	i.frame.function = uintptr(s)
	i.frame.step = uintptr(step.Function)
	i.frame.argument = step.Argument
	copy(i.frame.arguments[:], args)
	return i
}

// IsSet reports whether i is not the zero value.
func (i *Invocation) IsSet() bool { return i.frame.function != 0 }

// Set sets the argument with index n, counted from 0. It adds an argument if n is the number of
// arguments.
func (i *Invocation) Set(n int, value uintptr) {
	i.frame.arguments[n] = value
	i.count = max(i.count, n+1)
}

// Call makes the call as CallAfterStep does.
func (i *Invocation) Call() (status int32, ok bool) {
	if maxPrepared <= directArguments {
		return callForStatus(&i.frame)
	}

	f := &i.frame
	return callAfterWithPurego(Symbol(f.step), f.argument, Symbol(f.function), f.arguments[:i.count])
}
