package cuda

import (
	"errors"
	"testing"
)

// userObjects implements CUDA's user objects for one graph, which the C function end_graph
// destroys.
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

const graph Graph = 0x7700_0000_0040

func TestCallAfterGraphCallsFunctionOnce(t *testing.T) {
	driver, _ := load(t, declarations, userObjects)
	ended := 0
	if err := driver.CallAfterGraph(graph, func() { ended++ }); err != nil {
		t.Fatal(err)
	}

	if ended != 0 {
		t.Fatal("the function was called before the graph was destroyed")
	}

	invoke(driver, "end_graph")
	if ended != 1 || len(hostFuncs.work) != 0 {
		t.Errorf("the function was called %d times, and %d host functions remain; want 1 call and none",
			ended, len(hostFuncs.work))
	}
}

func TestCallAfterGraphReleasesAfterError(t *testing.T) {
	driver, _ := load(t, declarations, userObjects)
	for name, call := range map[string]uintptr{"no object": 1, "not retained": 2} {
		invoke(driver, "refuse_at", call)
		err := driver.CallAfterGraph(graph, func() { t.Errorf("%s: the function was called", name) })
		if !errors.Is(err, ErrInvalidValue) {
			t.Errorf("%s: CallAfterGraph = %v, want %v", name, err, ErrInvalidValue)
		}

		if remaining := invoke(driver, "references_left"); remaining != 0 || len(hostFuncs.work) != 0 {
			t.Errorf("%s: %d references and %d host functions remain, want none", name, remaining,
				len(hostFuncs.work))
		}
	}
}

func TestCallAfterGraphWithoutUserObjects(t *testing.T) {
	driver, _ := load(t, declarations)
	var missing *MissingError
	if err := driver.CallAfterGraph(graph, func() {}); !errors.As(err, &missing) {
		t.Errorf("CallAfterGraph = %v, want a MissingError", err)
	}
}
