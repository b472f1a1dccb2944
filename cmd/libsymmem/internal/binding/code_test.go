package binding

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"symmem"
)

// readEnumerators returns the values of the enumerators in symmem.h, by name without SYMMEM_.
func readEnumerators(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../symmem.h")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]int{}
	definition := regexp.MustCompile(`SYMMEM_(\w+) = (-?\d+)`)
	for _, match := range definition.FindAllStringSubmatch(string(text), -1) {
		value, err := strconv.Atoi(match[2])
		if err != nil {
			t.Fatal(err)
		}
		values[match[1]] = value
	}
	return values
}

func TestCodesMatchHeader(t *testing.T) {
	enumerators := readEnumerators(t)
	for c := CodeInvalid; c < numCodes; c++ {
		if want, ok := enumerators["ERR_"+c.String()]; !ok || want != int(c) {
			t.Errorf("code %v = %d, want %d as in symmem.h (found: %v)", c, int(c), want, ok)
		}
	}
	if enumerators["POOLS"] != MaxPools {
		t.Errorf("MaxPools = %d, want %d as in symmem.h", MaxPools, enumerators["POOLS"])
	}
}

func TestEnumsMatchHeader(t *testing.T) {
	enumerators := readEnumerators(t)
	check := func(name string, position int) {
		enumerator := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if want, ok := enumerators[enumerator]; !ok || want != position {
			t.Errorf("%s = %d, want %d as in symmem.h (found: %v)", enumerator, position, want, ok)
		}
	}
	for i, v := range types {
		check(v.String(), i)
	}
	for i, v := range paths {
		check("PATH_"+v.String(), i)
	}
	for i, v := range checkLevels {
		check("CHECK_"+v.String(), i)
	}
	wordBoundary := regexp.MustCompile(`([a-z]|All)([A-Z])`) // AllReduce is ALL_REDUCE
	for i, v := range operations {
		check(wordBoundary.ReplaceAllString(v.String(), "${1}_$2"), i)
	}
}

func TestCodeOf(t *testing.T) {
	for _, row := range []struct {
		name string
		err  error
		code Code
		json string
	}{
		{"no error is OK", nil, CodeOK, ""},
		{
			"divergence has details", &symmem.DivergenceError{Group: "world"}, CodeDivergence,
			`"divergence":{"group":"world"`,
		},
		{
			"deadlock is a divergence",
			&symmem.DeadlockError{Activity: map[int]string{1: "a check"}}, CodeDivergence,
			`"elsewhere":{"1":"a check"}`,
		},
		{
			"mismatched call is a divergence",
			&symmem.MismatchError{Group: "pair", Others: []int{1}}, CodeDivergence, `"group":"pair"`,
		},
		{
			"device out of memory", fmt.Errorf("mapping: %w", symmem.ErrOutOfMemory),
			CodeOutOfMemory, "mapping",
		},
		{
			"timeout lists late ranks", &symmem.TimeoutError{Missing: []int{3}}, CodeTimeout,
			`"missing":[3]`,
		},
		{
			"timeout lists absent ranks", &symmem.AbsentError{Ranks: []int{2}}, CodeTimeout,
			`"missing":[2]`,
		},
		{"lost ranks are listed", &symmem.RankLostError{Ranks: []int{1}}, CodeRankLost, `"ranks":[1]`},
		{
			"lost rank precedes its consequences",
			errors.Join(symmem.ErrClosed, &symmem.RankLostError{}), CodeRankLost, `"ranks":[]`,
		},
		{
			"out of memory has the requested size", &symmem.OutOfMemoryError{Requested: 7}, CodeOutOfMemory,
			`"requested":7`,
		},
		{
			"panic precedes the error it wraps", fmt.Errorf("%w: %w", ErrPanic, symmem.ErrClosed), CodePanic,
			`"name":"PANIC"`,
		},
		{"closed", symmem.ErrClosed, CodeClosed, ""},
		{"other errors are FAILED", errors.New("cuda error 999"), CodeFailed, "cuda error 999"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := CodeOf(row.err); got != row.code {
				t.Errorf("CodeOf = %v, want %v", got, row.code)
			}
			if row.err == nil {
				return
			}
			text := Detail(row.code, row.err)
			if !json.Valid([]byte(text)) || !strings.Contains(text, row.json) {
				t.Errorf("Detail = %s, want valid JSON with %s", text, row.json)
			}
		})
	}
}

func TestDivergenceWithoutCallSitesSuggestsEnablingThem(t *testing.T) {
	d := symmem.DivergenceError{Sides: []symmem.Side{
		{Ranks: []int{0}, Event: "this"}, {Ranks: []int{1}, Event: "that"},
	}}
	const advice = "SYMMEM_CALLSITES=1"
	if text := CodeDivergence.Message(&d); !strings.Contains(text, advice) {
		t.Errorf("message without call sites = %s, want %s in it", text, advice)
	}
	d.Sides[0].Site = "model.py:7"
	if text := CodeDivergence.Message(&d); strings.Contains(text, advice) {
		t.Errorf("message with a call site = %s, want no %s in it", text, advice)
	}
}

func TestPlugResult(t *testing.T) {
	for err, want := range map[error]int{
		nil:                       0, // ncclSuccess
		ErrPanic:                  3, // ncclInternalError
		symmem.ErrInvalid:         4, // ncclInvalidArgument
		ErrNotOpen:                5, // ncclInvalidUsage
		symmem.ErrAborted:         6, // ncclRemoteError
		&symmem.DivergenceError{}: 5,
		errors.New("any other"):   2, // ncclSystemError
	} {
		if got := PlugResult(err); got != want {
			t.Errorf("PlugResult(%v) = %d, want %d", err, got, want)
		}
	}
}
