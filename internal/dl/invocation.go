package dl

// C passes six of the arguments in registers.
const maxPrepared = 12

// frame describes a call to the assembly code in call_amd64.s.
type frame struct {
	function  uintptr
	arguments [maxPrepared]uintptr
	step      uintptr // function to call before, or 0
	argument  uintptr // of step
	result    uintptr // where to store the 64-bit result, or 0
}

// Invocation is a prepared CallAfterStep, for repeated calls with nearly the same arguments. It is
// not safe for concurrent use.
type Invocation struct {
	frame frame
	count int
}

// Prepare returns an Invocation with the preconditions of CallAfterStep. It panics if there are
// more than twelve arguments.
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

// IsSet reports whether i is not the zero value.
func (i *Invocation) IsSet() bool { return i.frame.function != 0 }

// Set sets argument n, from 0, of which the last may be new.
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
	return callAfterWithPurego(f.step, f.argument, Symbol(f.function), f.arguments[:i.count])
}
