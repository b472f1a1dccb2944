package dltest

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"symmem/internal/dl"
)

// A test of a binding to a C library replaces the library with a shared object that records calls.
// For the declaration "int f(int a, void *b)", the shared object contains this function:
//
//	int f(int a, void *b) {
//		int64_t args[] = {(int64_t)a, (int64_t)b};
//		return record("f", 2, args);
//	}
//
// The test calls f through the binding, with 7 and the address of some memory. LastCall then
// returns the name f and both arguments. Before the call, the test can set what f returns
// (SetResult), what it writes to the memory (SetOutput), and how many bytes of the memory it copies
// (RecordMemory).

// recorder is the C code that all shared objects contain. A function that begins with recorder_
// implements the method of Recorder with a similar name.
const recorder = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The arrays have an element for each argument. */
static struct last_call {
	char name[64];
	int64_t count;
	int64_t args[16];
	unsigned char memory[16][256];
} last_call;
static struct { unsigned char bytes[256]; size_t length; } outputs[16]; /* what to write */
static size_t memory_lengths[16]; /* how many bytes to copy */
static int result; /* of all functions */

static int record(const char *name, int count, int64_t *args) {
	strcpy(last_call.name, name);
	last_call.count = count;
	for (int i = 0; i < count; i++) {
		void *memory = (void *)args[i]; /* used only if the argument is a pointer */
		last_call.args[i] = args[i];
		if (memory_lengths[i]) memcpy(last_call.memory[i], memory, memory_lengths[i]);
		if (outputs[i].length) memcpy(memory, outputs[i].bytes, outputs[i].length);
	}
	return result;
}
void recorder_result(int r) { result = r; }
void recorder_output(int i, void *bytes, size_t n) {
	memcpy(outputs[i].bytes, bytes, n);
	outputs[i].length = n;
}
void recorder_memory(int i, size_t n) { memory_lengths[i] = n; }
void recorder_reset(void) {
	memset(&last_call, 0, sizeof last_call);
	memset(outputs, 0, sizeof outputs);
	memset(memory_lengths, 0, sizeof memory_lengths);
	result = 0;
}
void *recorder_last_call(void) { return &last_call; }
`

// declarationPattern matches a declaration such as "int f(int a, void *b)". Its groups are the
// type, the name and the parameters.
var declarationPattern = regexp.MustCompile(`^\s*(\w+)\s+(\w+)\s*\((.*)\)$`)

// Source returns the C code of a shared object that records calls of the declared functions. All
// functions must return int and have at most 16 parameters. prelude declares the C types of the
// parameters.
//
// A declaration takes one line, or several lines. In the second case, each line but the last ends
// with a comma, and each line but the first begins with a tab.
func Source(t testing.TB, prelude, declarations string) string {
	t.Helper()
	var code strings.Builder
	code.WriteString(recorder + prelude)
	joinedLines := strings.ReplaceAll(declarations, ",\n\t", ", ") // one declaration per line
	for line := range strings.Lines(joinedLines) {
		declaration := strings.TrimSpace(line)
		if declaration == "" {
			continue
		}

		groups := declarationPattern.FindStringSubmatch(declaration)
		if groups == nil {
			t.Fatalf("%q is not a function declaration", declaration)
		}

		name := groups[2]
		params := groups[3]
		fmt.Fprintf(&code, "%s {\n", declaration)
		fmt.Fprintf(&code, "\tint64_t args[] = {%s};\n", castArguments(params))
		fmt.Fprintf(&code, "\treturn record(%q, %d, args);\n}\n", name, countParams(params))
	}

	return code.String()
}

// countParams returns the number of parameters in a list such as "int a, void *b".
func countParams(params string) int {
	if params == "void" {
		return 0
	}

	return strings.Count(params, ",") + 1
}

// castArguments returns C expressions that convert the parameters to int64_t. For example, it
// returns "(int64_t)a, (int64_t)b" for "int a, void *b".
func castArguments(params string) string {
	if countParams(params) == 0 {
		return "0" // A C array cannot be empty.
	}

	isSeparator := func(r rune) bool { return r == ' ' || r == '*' }
	var casts []string
	for param := range strings.SplitSeq(params, ",") {
		words := strings.FieldsFunc(param, isSeparator) // the type and the name
		casts = append(casts, "(int64_t)"+words[len(words)-1])
	}

	return strings.Join(casts, ", ")
}

// Recorder is a loaded shared object that was built from the code of Source.
type Recorder struct {
	t       testing.TB
	library *dl.Library
}

// lastCall mirrors struct last_call of the C code.
type lastCall struct {
	name   [64]byte
	count  int64
	args   [16]int64
	memory [16][256]byte
}

// Call is a recorded call.
type Call struct {
	Name string  // of the function
	Args []int64 // truncated to the declared types
	// Memory contains, for each argument of RecordMemory, the memory to which it pointed at the begin
	// of the call. It is zero for other arguments.
	Memory [16][256]byte
}

// Open opens the shared object at a path and calls Reset.
func Open(t testing.TB, path string) *Recorder {
	t.Helper()
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	r := &Recorder{t: t, library: library}
	r.Reset()
	return r
}

// call calls a function of the C part.
func (r *Recorder) call(name string, args ...uintptr) uintptr {
	r.t.Helper()
	symbol, exists := r.library.Find(name)
	if !exists {
		r.t.Fatalf("the recorder has no %s", name)
	}

	return symbol.Call(args...)
}

// Reset deletes the last call and all settings.
func (r *Recorder) Reset() {
	r.t.Helper()
	r.call("recorder_reset")
}

// SetResult sets the value that all functions return.
func (r *Recorder) SetResult(code int) {
	r.t.Helper()
	r.call("recorder_result", uintptr(code))
}

// SetOutput makes all functions write bytes to the memory to which an argument points. index counts
// arguments from 0. The number of bytes must be from 1 to 256.
func (r *Recorder) SetOutput(index int, bytes []byte) {
	r.t.Helper()
	copied := slices.Clone(bytes)
	address := dl.AddressOf(&copied[0])
	r.call("recorder_output", uintptr(index), address, uintptr(len(copied)))
	runtime.KeepAlive(copied)
}

// RecordMemory makes all functions copy the first bytes of the memory to which an argument points.
// index counts arguments from 0. bytes is the number of bytes, at most 256.
func (r *Recorder) RecordMemory(index, bytes int) {
	r.t.Helper()
	r.call("recorder_memory", uintptr(index), uintptr(bytes))
}

// LastCall returns the last call.
func (r *Recorder) LastCall() Call {
	r.t.Helper()
	last := dl.Load[lastCall](r.call("recorder_last_call")) // a copy
	name, _, _ := strings.Cut(string(last.name[:]), "\x00")
	return Call{Name: name, Args: last.args[:last.count:last.count], Memory: last.memory}
}
