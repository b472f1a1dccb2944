package cuda

import (
	"errors"
	"testing"
)

// userObjects fakes a CUDA user object, a reference-counted object with a destructor.
// CallAfterGraph creates the object and moves the only reference to a graph. end_graph releases the
// reference, as CUDA does when it destroys the graph.
const userObjects = `
#define GRAPH ((CUgraph)0x770000000040)
#define OBJECT ((void *)0x770000000030)
enum { INVALID_VALUE = 1, FAIL_CREATE = 1, FAIL_RETAIN = 2 };
static CUhostFn destructor;
static void *argument;
static int64_t references;
static int64_t failing_step;
CUresult cuUserObjectCreate(void **object, void *ptr, CUhostFn destroy, unsigned int count,
	unsigned int flags) {
	if (failing_step == FAIL_CREATE || count != 1 || flags != 1) return INVALID_VALUE;
	destructor = destroy;
	argument = ptr;
	references = 1;
	*object = OBJECT;
	return 0;
}
CUresult cuUserObjectRelease(void *object, unsigned int count) {
	references -= count;
	if (references == 0) destructor(argument);
	return 0;
}
CUresult cuGraphRetainUserObject(CUgraph graph, void *object, unsigned int count,
	unsigned int flags) {
	if (failing_step == FAIL_RETAIN || count != 1 || flags != 1) return INVALID_VALUE;
	return graph == GRAPH && object == OBJECT ? 0 : INVALID_VALUE;
}
int64_t references_left(void) { return references; }
void fail_at(int64_t step) { failing_step = step; }
void end_graph(void) { cuUserObjectRelease(OBJECT, 1); }
`

// These constants have the same values in userObjects.
const (
	failCreate = 1 // cuUserObjectCreate fails
	failRetain = 2 // cuGraphRetainUserObject fails
)

const graph Graph = 0x7700_0000_0040 // also in userObjects

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

// checkNoHostFuncs checks that no Go functions remain registered for calls from C.
func checkNoHostFuncs(t *testing.T, when string) {
	t.Helper()
	if remaining := len(hostFuncs.work); remaining != 0 {
		t.Errorf("%s: %d host functions remain, want none", when, remaining)
	}
}

func TestCallAfterGraphReleasesAfterError(t *testing.T) {
	driver, _ := load(t, declarations, userObjects)
	for name, failingStep := range map[string]uintptr{
		"no object":    failCreate,
		"not retained": failRetain,
	} {
		invoke(driver, "fail_at", failingStep)
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
