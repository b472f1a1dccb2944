package dltest

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"symmem/internal/dl"
)

// recorder is the C part: what is noted down of the last call, and what the next one answers.
const recorder = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static struct note {
	char name[64];
	int64_t count;
	int64_t args[16];
	unsigned char seen[16][256];
} note;
static struct { unsigned char bytes[256]; size_t length; } outputs[16];
static size_t inputs[16];
static int result;

static int record(const char *name, int count, int64_t *args) {
	strcpy(note.name, name);
	note.count = count;
	for (int i = 0; i < count; i++) {
		note.args[i] = args[i];
		if (inputs[i]) memcpy(note.seen[i], (void *)args[i], inputs[i]);
		if (outputs[i].length) memcpy((void *)args[i], outputs[i].bytes, outputs[i].length);
	}
	return result;
}
void recorder_result(int r) { result = r; }
void recorder_output(int i, void *bytes, size_t n) {
	memcpy(outputs[i].bytes, bytes, n);
	outputs[i].length = n;
}
void recorder_input(int i, size_t n) { inputs[i] = n; }
void recorder_reset(void) {
	memset(&note, 0, sizeof note);
	memset(outputs, 0, sizeof outputs);
	memset(inputs, 0, sizeof inputs);
	result = 0;
}
void *recorder_note(void) { return &note; }
`

// declaration splits "int f(int a, void *b)" into its parts.
var declaration = regexp.MustCompile(`^\s*(\w+)\s+(\w+)\s*\((.*)\)$`)

// Source writes the C source of a recorder: prelude holds the types that the declarations use, and
// functions of the test's own. Declarations are those of the header, each on a line of its own,
// which goes on in the next one after a comma; the functions return an int.
func Source(t testing.TB, prelude, declarations string) string {
	t.Helper()
	var c strings.Builder
	c.WriteString(recorder + prelude)
	for line := range strings.Lines(strings.ReplaceAll(declarations, ",\n\t", ", ")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		parts := declaration.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("%q is no declaration", line)
		}
		name, params := parts[2], parts[3]
		fmt.Fprintf(&c, "%s {\n\tint64_t args[] = {%s};\n\treturn record(\"%s\", %d, args);\n}\n",
			line, words(params), name, count(params))
	}
	return c.String()
}

func count(params string) int {
	if params == "void" {
		return 0
	}
	return strings.Count(params, ",") + 1
}

// words casts each parameter to a word: what its type cannot hold is lost on the way.
func words(params string) string {
	if count(params) == 0 {
		return "0"
	}
	var all []string
	for p := range strings.SplitSeq(params, ",") {
		fields := strings.FieldsFunc(p, func(r rune) bool { return r == ' ' || r == '*' })
		all = append(all, "(int64_t)"+fields[len(fields)-1])
	}
	return strings.Join(all, ", ")
}

// Recorder is a shared object that was made from a Source. One test uses it at a time.
type Recorder struct {
	t       testing.TB
	library *dl.Library
}

// note mirrors the C structure of that name.
type note struct {
	name  [64]byte
	count int64
	args  [16]int64
	seen  [16][256]byte
}

// Call is a call as the C function saw it.
type Call struct {
	// Name is the function's.
	Name string
	// Args are the arguments, each cut to the width of its declared type.
	Args []int64
	// Seen holds what was at the addresses of the arguments that Input named.
	Seen [16][256]byte
}

// Open opens the recorder of a file and forgets what it was told.
func Open(t testing.TB, path string) *Recorder {
	t.Helper()
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r := &Recorder{t, library}
	r.Reset()
	return r
}

func (r *Recorder) call(name string, args ...uintptr) uintptr {
	r.t.Helper()
	symbol, ok := r.library.Find(name)
	if !ok {
		r.t.Fatalf("the recorder has no %s", name)
	}
	return symbol.Call(args...)
}

// Reset forgets the last call and all answers.
func (r *Recorder) Reset() { r.t.Helper(); r.call("recorder_reset") }

// Result sets what functions return.
func (r *Recorder) Result(code int) { r.t.Helper(); r.call("recorder_result", uintptr(code)) }

// Output makes functions write bytes to the address in the argument of the given index.
func (r *Recorder) Output(index int, bytes []byte) {
	r.t.Helper()
	copied := append([]byte(nil), bytes...)
	r.call("recorder_output", uintptr(index), dl.AddressOf(&copied[0]), uintptr(len(copied)))
	runtime.KeepAlive(copied)
}

// Input makes functions note down what is at the address in the argument of the given index.
func (r *Recorder) Input(index, bytes int) {
	r.t.Helper()
	r.call("recorder_input", uintptr(index), uintptr(bytes))
}

// Last returns the last call.
func (r *Recorder) Last() Call {
	r.t.Helper()
	n := dl.Load[note](r.call("recorder_note"))
	name, _, _ := strings.Cut(string(n.name[:]), "\x00")
	return Call{name, n.args[:n.count:n.count], n.seen}
}
