package cuda

import (
	"errors"
	"testing"
)

// CallAfterGraph makes CUDA call a Go function when a graph is destroyed. For this, it gives the
// graph a user object, which is an object of CUDA with a destructor and a count of references:
//
//  1. cuUserObjectCreate creates the object with 1 reference.
//  2. cuGraphRetainUserObject moves this reference to the graph.
//  3. The graph is destroyed, and releases its reference. As none is left, CUDA calls the
//     destructor, which calls the Go function.
//
// If the second step fails, CallAfterGraph itself must release the reference.

// userObjects implements these functions of CUDA in C, for one object and one graph. Tests call the
// last three functions:
//
//   - references_left returns the number of references.
//   - refuse_at(1) makes cuUserObjectCreate fail, and refuse_at(2) cuGraphRetainUserObject.
//   - end_graph releases the reference of the graph, as its destruction would.
//
// The result 1 of a function is the error ErrInvalidValue.
const userObjects = `
static CUhostFn destructor;
static void *argument;
static int64_t references, refuse;
CUresult cuUserObjectCreate(void **object, void *ptr, CUhostFn destroy, unsigned int count,
	unsigned int flags) {
	if (refuse == 1 || count != 1 || flags != 1) return 1;
	destructor = destroy;
	argument = ptr;
	references = 1;
	*object = (void *)0x770000000030;
	return 0;
}
CUresult cuUserObjectRelease(void *object, unsigned int count) {
	references -= count;
	if (references == 0) destructor(argument);
	return 0;
}
CUresult cuGraphRetainUserObject(CUgraph graph, void *object, unsigned int count,
	unsigned int flags) {
	int64_t good = (int64_t)graph == 0x770000000040 && (int64_t)object == 0x770000000030;
	return refuse == 2 || !good || count != 1 || flags != 1 ? 1 : 0;
}
int64_t references_left(void) { return references; }
void refuse_at(int64_t call) { refuse = call; }
void end_graph(void) { cuUserObjectRelease(0, 1); }
`

// graph is the handle that cuGraphRetainUserObject in userObjects expects.
const graph Graph = 0x7700_0000_0040

// TestCallAfterGraphCallsFunctionOnce destroys the graph. Before, the function must not be called.
func TestCallAfterGraphCallsFunctionOnce(t *testing.T) {
	driver, _ := load(t, declarations, userObjects) // builds a C library in place of CUDA
	callCount := 0
	if err := driver.CallAfterGraph(graph, func() { callCount++ }); err != nil {
		t.Fatal(err)
	}

	if callCount != 0 {
		t.Fatal("the function was called before the graph was destroyed")
	}

	invoke(driver, "end_graph")
	if callCount != 1 {
		t.Errorf("the function was called %d times, want 1", callCount)
	}

	checkNoHostFuncs(t, "after the call")
}

// checkNoHostFuncs checks that no Go functions are registered for calls from C. when describes the
// situation in messages.
func checkNoHostFuncs(t *testing.T, when string) {
	t.Helper()
	if remaining := len(hostFuncs.work); remaining != 0 {
		t.Errorf("%s: %d host functions remain, want none", when, remaining)
	}
}

// TestCallAfterGraphReleasesAfterError makes a function of CUDA fail. Then nothing may remain.
func TestCallAfterGraphReleasesAfterError(t *testing.T) {
	driver, _ := load(t, declarations, userObjects)
	for name, failingStep := range map[string]uintptr{"no object": 1, "not retained": 2} {
		invoke(driver, "refuse_at", failingStep)
		err := driver.CallAfterGraph(graph, func() { t.Errorf("%s: the function was called", name) })
		if !errors.Is(err, ErrInvalidValue) {
			t.Errorf("%s: CallAfterGraph = %v, want %v", name, err, ErrInvalidValue)
		}

		if remaining := invoke(driver, "references_left"); remaining != 0 {
			t.Errorf("%s: %d references remain, want none", name, remaining)
		}

		checkNoHostFuncs(t, name)
	}
}

// TestCallAfterGraphWithoutUserObjects uses a CUDA library without the functions for user objects.
func TestCallAfterGraphWithoutUserObjects(t *testing.T) {
	driver, _ := load(t, declarations)
	var missing *MissingError
	if err := driver.CallAfterGraph(graph, func() {}); !errors.As(err, &missing) {
		t.Errorf("CallAfterGraph = %v, want a MissingError", err)
	}
}
