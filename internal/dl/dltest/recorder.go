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

// recorderCode records the last call of the functions that Source generates. For example, Source
// turns "int f(int a, void *b)" into
//
//	int f(int a, void *b) {
//		int64_t args[] = {(int64_t)a, (int64_t)b};
//		return record("f", 2, args);
//	}
const recorderCode = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAX_ARGS = 16, MAX_BYTES = 256 };
static struct last_call {
	char name[64];
	int64_t count;
	int64_t args[MAX_ARGS];
	unsigned char memory[MAX_ARGS][MAX_BYTES]; /* recorded from pointer arguments */
} last_call;
static size_t memory_lengths[MAX_ARGS]; /* bytes to record from pointer arguments */
static struct {
	unsigned char bytes[MAX_BYTES];
	size_t length;
} outputs[MAX_ARGS]; /* bytes to write to pointer arguments */
static int result; /* of all functions */

static int record(const char *name, int count, int64_t *args) {
	strcpy(last_call.name, name);
	last_call.count = count;
	for (int i = 0; i < count; i++) {
		void *memory = (void *)args[i]; /* used only if a length is set */
		last_call.args[i] = args[i];
		if (memory_lengths[i]) memcpy(last_call.memory[i], memory, memory_lengths[i]);
		if (outputs[i].length) memcpy(memory, outputs[i].bytes, outputs[i].length);
	}
	return result;
}
void recorder_result(int new_result) { result = new_result; }
void recorder_output(int arg, void *bytes, size_t length) {
	memcpy(outputs[arg].bytes, bytes, length);
	outputs[arg].length = length;
}
void recorder_memory(int arg, size_t length) { memory_lengths[arg] = length; }
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

// Source returns C code with the declared functions, which record their calls. Each function must
// return int and have at most 16 parameters. prelude declares the types of the parameters.
//
// Each line of declarations is one declaration. After a comma, a declaration can continue on a line
// that begins with a tab.
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

		match := declarationPattern.FindStringSubmatch(declaration)
		if match == nil {
			t.Fatalf("%q is not a function declaration", declaration)
		}

		name, params := match[1], match[2]
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

// Recorder is a loaded library that was compiled from the result of Source.
type Recorder struct {
	t       testing.TB
	library *dl.Library
}

// These constants have the same values in recorderCode.
const (
	maxArgs  = 16
	maxBytes = 256
)

// lastCall mirrors struct last_call of the C code.
type lastCall struct {
	name   [64]byte
	count  int64
	args   [maxArgs]int64
	memory [maxArgs][maxBytes]byte
}

// Call is a recorded call.
type Call struct {
	Name string  // of the function
	Args []int64 // truncated to the declared types
	// Memory has the bytes that RecordMemory selected, from before the call.
	Memory [maxArgs][maxBytes]byte
}

// Open loads the library at path and resets the recorder.
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
func (r *Recorder) SetResult(result int) {
	r.t.Helper()
	r.call("recorder_result", uintptr(result))
}

// SetOutput makes all functions write 1 to 256 bytes to the address in the argument at index.
func (r *Recorder) SetOutput(index int, bytes []byte) {
	r.t.Helper()
	copied := slices.Clone(bytes)
	address := dl.AddressOf(&copied[0])
	r.call("recorder_output", uintptr(index), address, uintptr(len(copied)))
	runtime.KeepAlive(copied)
}

// RecordMemory makes all functions record up to 256 bytes at the address in the argument at index.
func (r *Recorder) RecordMemory(index, length int) {
	r.t.Helper()
	r.call("recorder_memory", uintptr(index), uintptr(length))
}

// LastCall returns the last call.
func (r *Recorder) LastCall() Call {
	r.t.Helper()
	last := dl.Read[lastCall](r.call("recorder_last_call"))
	name, _, _ := strings.Cut(string(last.name[:]), "\x00")
	return Call{Name: name, Args: slices.Clone(last.args[:last.count]), Memory: last.memory}
}
