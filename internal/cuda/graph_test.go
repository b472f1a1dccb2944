package cuda

import (
	"errors"
	"testing"
)

// userObjects is a fake of one CUDA user object, a reference-counted object that calls a
// destructor. CallAfterGraph creates it and moves its reference to a graph. end_graph releases that
// reference, as the destruction of the graph would. The result 1 is ErrInvalidValue.
const userObjects = `
static CUhostFn destructor;
static void *argument;
static int64_t references;
static int64_t refuse; /* 1: cuUserObjectCreate fails, 2: cuGraphRetainUserObject fails */
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
	if (refuse == 2 || count != 1 || flags != 1) return 1;
	if ((int64_t)graph != 0x770000000040 || (int64_t)object != 0x770000000030) return 1;
	return 0;
}
int64_t references_left(void) { return references; }
void refuse_at(int64_t call) { refuse = call; }
void end_graph(void) { cuUserObjectRelease(0, 1); }
`

// graph is the only handle that userObjects accepts.
const graph Graph = 0x7700_0000_0040

func TestCallAfterGraphCallsFunctionOnce(t *testing.T) {
	driver, _ := load(t, declarations, userObjects) // a fake libcuda
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

// checkNoHostFuncs checks that no Go functions are registered for calls from C.
func checkNoHostFuncs(t *testing.T, when string) {
	t.Helper()
	if remaining := len(hostFuncs.work); remaining != 0 {
		t.Errorf("%s: %d host functions remain, want none", when, remaining)
	}
}

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

func TestCallAfterGraphWithoutUserObjects(t *testing.T) {
	driver, _ := load(t, declarations)
	var missing *MissingError
	if err := driver.CallAfterGraph(graph, func() {}); !errors.As(err, &missing) {
		t.Errorf("CallAfterGraph = %v, want a MissingError", err)
	}
}
