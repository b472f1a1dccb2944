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

// recorderCode is the C code of a shared object that replaces a C library and records calls. Source
// adds a function for each declaration. For example, "int f(int a, void *b)" becomes
//
//	int f(int a, void *b) {
//		int64_t args[] = {(int64_t)a, (int64_t)b};
//		return record("f", 2, args);
//	}
const recorderCode = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* All arrays except name and bytes are indexed by argument. */
static struct last_call {
	char name[64];
	int64_t count;
	int64_t args[16];
	unsigned char memory[16][256]; /* copies of the memory behind pointers */
} last_call;
static struct { unsigned char bytes[256]; size_t length; } outputs[16]; /* to write to pointers */
static size_t memory_lengths[16]; /* how many bytes to copy from pointers */
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

// declarationPattern captures the name and the parameters of "int f(int a, void *b)".
var declarationPattern = regexp.MustCompile(`^\s*\w+\s+(\w+)\s*\((.*)\)$`)

// Source returns the C code of a shared object that records calls of the declared functions, which
// must return int and have at most 16 parameters. prelude declares their parameter types.
//
// Each line holds one declaration. A declaration can continue after a comma on a line that begins
// with a tab.
func Source(t testing.TB, prelude, declarations string) string {
	t.Helper()
	var code strings.Builder
	code.WriteString(recorderCode + prelude)
	joinedLines := strings.ReplaceAll(declarations, ",\n\t", ", ")
	for line := range strings.Lines(joinedLines) {
		declaration := strings.TrimSpace(line)
		if declaration == "" {
			continue
		}

		groups := declarationPattern.FindStringSubmatch(declaration)
		if groups == nil {
			t.Fatalf("%q is not a function declaration", declaration)
		}

		name := groups[1]
		params := groups[2]
		fmt.Fprintf(&code, "%s {\n", declaration)
		fmt.Fprintf(&code, "\tint64_t args[] = {%s};\n", castArguments(params))
		fmt.Fprintf(&code, "\treturn record(%q, %d, args);\n}\n", name, countParams(params))
	}

	return code.String()
}

// countParams returns 2 for "int a, void *b".
func countParams(params string) int {
	if params == "void" {
		return 0
	}

	return strings.Count(params, ",") + 1
}

// castArguments returns "(int64_t)a, (int64_t)b" for "int a, void *b".
func castArguments(params string) string {
	if countParams(params) == 0 {
		return "0" // a C array cannot be empty
	}

	isSeparator := func(r rune) bool { return r == ' ' || r == '*' }
	var casts []string
	for param := range strings.SplitSeq(params, ",") {
		words := strings.FieldsFunc(param, isSeparator)
		name := words[len(words)-1]
		casts = append(casts, "(int64_t)"+name)
	}

	return strings.Join(casts, ", ")
}

// Recorder is a loaded shared object that was built from the result of Source.
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
	// Memory is indexed by argument. It contains copies, made when the call began, of the memory
	// that RecordMemory has selected.
	Memory [16][256]byte
}

// Open loads the shared object at path and resets it.
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

func (r *Recorder) call(name string, args ...uintptr) uintptr {
	r.t.Helper()
	symbol, exists := r.library.Find(name)
	if !exists {
		r.t.Fatalf("the recorder has no %s", name)
	}

	return symbol.Call(args...)
}

// Reset clears the last call and all settings.
func (r *Recorder) Reset() {
	r.t.Helper()
	r.call("recorder_reset")
}

// SetResult sets the value that all functions return.
func (r *Recorder) SetResult(code int) {
	r.t.Helper()
	r.call("recorder_result", uintptr(code))
}

// SetOutput makes all functions write 1 to 256 bytes to the memory to which an argument points.
// index counts arguments from 0.
func (r *Recorder) SetOutput(index int, bytes []byte) {
	r.t.Helper()
	copied := slices.Clone(bytes)
	address := dl.AddressOf(&copied[0])
	r.call("recorder_output", uintptr(index), address, uintptr(len(copied)))
	runtime.KeepAlive(copied)
}

// RecordMemory makes all functions record the first length bytes, at most 256, of the memory to
// which an argument points. index counts arguments from 0.
func (r *Recorder) RecordMemory(index, length int) {
	r.t.Helper()
	r.call("recorder_memory", uintptr(index), uintptr(length))
}

// LastCall returns the last call.
func (r *Recorder) LastCall() Call {
	r.t.Helper()
	last := dl.Load[lastCall](r.call("recorder_last_call"))
	name, _, _ := strings.Cut(string(last.name[:]), "\x00")
	return Call{Name: name, Args: last.args[:last.count:last.count], Memory: last.memory}
}
