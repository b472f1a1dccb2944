package dltest

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"symmem/internal/dl"
)

// recorder is the C part of a Recorder. Each recorded function calls record. The other functions
// implement the methods of Recorder.
const recorder = `
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static struct last_call {
	char name[64];
	int64_t count;
	int64_t args[16];
	unsigned char memory[16][256];
} last_call;
static struct { unsigned char bytes[256]; size_t length; } outputs[16];
static size_t memory_lengths[16];
static int result;

static int record(const char *name, int count, int64_t *args) {
	strcpy(last_call.name, name);
	last_call.count = count;
	for (int i = 0; i < count; i++) {
		last_call.args[i] = args[i];
		if (memory_lengths[i]) memcpy(last_call.memory[i], (void *)args[i], memory_lengths[i]);
		if (outputs[i].length) memcpy((void *)args[i], outputs[i].bytes, outputs[i].length);
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

// declaration matches a declaration such as "int f(int a, void *b)". Its groups are the type, the
// name and the parameters.
var declaration = regexp.MustCompile(`^\s*(\w+)\s+(\w+)\s*\((.*)\)$`)

// Source returns the C code of a shared object that records calls of the declared functions. All
// functions must return int and have at most 16 parameters. Each declaration must start on a new
// line, and may continue after ",\n\t". prelude declares the C types of the parameters.
func Source(t testing.TB, prelude, declarations string) string {
	t.Helper()
	var code strings.Builder
	code.WriteString(recorder + prelude)
	for line := range strings.Lines(strings.ReplaceAll(declarations, ",\n\t", ", ")) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		parts := declaration.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("%q is not a function declaration", line)
		}
		name, params := parts[2], parts[3]
		fmt.Fprintf(&code, "%s {\n\tint64_t args[] = {%s};\n\treturn record(\"%s\", %d, args);\n}\n",
			line, castArguments(params), name, countParams(params))
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

// castArguments returns C expressions that convert the parameters to int64_t, or "0" if there are
// none, because a C array cannot be empty.
func castArguments(params string) string {
	if countParams(params) == 0 {
		return "0"
	}
	var all []string
	for p := range strings.SplitSeq(params, ",") {
		fields := strings.FieldsFunc(p, func(r rune) bool { return r == ' ' || r == '*' })
		all = append(all, "(int64_t)"+fields[len(fields)-1])
	}
	return strings.Join(all, ", ")
}

// Recorder accesses a shared object built from the code that Source returns.
type Recorder struct {
	t       testing.TB
	library *dl.Library
}

// lastCall has the layout of struct last_call in recorder.
type lastCall struct {
	name   [64]byte
	count  int64
	args   [16]int64
	memory [16][256]byte
}

// Call is a recorded call.
type Call struct {
	Name   string
	Args   []int64       // truncated to the declared types
	Memory [16][256]byte // by argument; zero except for those that RecordMemory has selected
}

// Open opens the shared object at a path and calls Reset.
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

// Reset deletes the last call and all settings.
func (r *Recorder) Reset() { r.t.Helper(); r.call("recorder_reset") }

// SetResult sets the value that all functions return.
func (r *Recorder) SetResult(code int) { r.t.Helper(); r.call("recorder_result", uintptr(code)) }

// SetOutput makes functions write bytes, at most 256, to the memory to which an argument points.
// index counts arguments from 0.
func (r *Recorder) SetOutput(index int, bytes []byte) {
	r.t.Helper()
	copied := append([]byte(nil), bytes...)
	r.call("recorder_output", uintptr(index), dl.AddressOf(&copied[0]), uintptr(len(copied)))
	runtime.KeepAlive(copied)
}

// RecordMemory makes functions record the given number of bytes, at most 256, to which an argument
// points.
func (r *Recorder) RecordMemory(index, bytes int) {
	r.t.Helper()
	r.call("recorder_memory", uintptr(index), uintptr(bytes))
}

// LastCall returns the last call.
func (r *Recorder) LastCall() Call {
	r.t.Helper()
	call := dl.Load[lastCall](r.call("recorder_last_call"))
	name, _, _ := strings.Cut(string(call.name[:]), "\x00")
	return Call{name, call.args[:call.count:call.count], call.memory}
}
