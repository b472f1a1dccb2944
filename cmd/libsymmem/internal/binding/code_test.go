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

func readEnumerators(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../symmem.h")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	pairs := regexp.MustCompile(`SYMMEM_(\w+) = (-?\d+)`)
	for _, m := range pairs.FindAllStringSubmatch(string(text), -1) {
		if names[m[1]], err = strconv.Atoi(m[2]); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

func TestCodesMatchHeader(t *testing.T) {
	names := readEnumerators(t)
	for c := CodeInvalid; c < numCodes; c++ {
		if got, ok := names["ERR_"+c.String()]; !ok || got != int(c) {
			t.Errorf("code %v = %d, want %d as in symmem.h", c, c, got)
		}
	}
	if names["POOLS"] != MaxPools {
		t.Errorf("MaxPools = %d, want %d as in symmem.h", MaxPools, names["POOLS"])
	}
}

func TestEnumsMatchHeader(t *testing.T) {
	names := readEnumerators(t)
	check := func(name string, number int) {
		if got, ok := names[strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]; !ok || got != number {
			t.Errorf("%s = %d, want %d as in symmem.h", name, number, got)
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
	camel := regexp.MustCompile(`([a-z]|All)([A-Z])`)
	for i, v := range operations {
		check(camel.ReplaceAllString(v.String(), "${1}_$2"), i)
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
		nil: 0, ErrPanic: 3, symmem.ErrInvalid: 4, ErrNotOpen: 5, symmem.ErrAborted: 6,
		&symmem.DivergenceError{}: 5, errors.New("else"): 2,
	} {
		if got := PlugResult(err); got != want {
			t.Errorf("PlugResult(%v) = %d, want %d", err, got, want)
		}
	}
}
