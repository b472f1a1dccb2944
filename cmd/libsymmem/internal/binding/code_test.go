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

// readEnumerators returns the values of enumerators in symmem.h. Their names have no SYMMEM_.
func readEnumerators(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile("../../symmem.h")
	if err != nil {
		t.Fatal(err)
	}

	values := map[string]int{}
	definition := regexp.MustCompile(`SYMMEM_(\w+) = (-?\d+)`)
	for _, match := range definition.FindAllStringSubmatch(string(text), -1) {
		name, digits := match[1], match[2]
		value, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatal(err)
		}

		values[name] = value
	}

	return values
}

func checkEnumerator(t *testing.T, enumerators map[string]int, name string, got int) {
	t.Helper()
	want, ok := enumerators[name]
	if !ok {
		t.Errorf("symmem.h does not define SYMMEM_%s", name)
	} else if got != want {
		t.Errorf("SYMMEM_%s is %d in Go, want %d as in symmem.h", name, got, want)
	}
}

func TestCodesMatchHeader(t *testing.T) {
	enumerators := readEnumerators(t)
	for c := CodeOK + 1; c < numCodes; c++ {
		checkEnumerator(t, enumerators, "ERR_"+c.String(), int(c))
	}

	checkEnumerator(t, enumerators, "POOLS", MaxPools)
}

// A name in the header is derived from a Go name, such as ALL_REDUCE from AllReduce and TWO_LEVEL
// from two-level. The enum values is not checked, because some of its Go names are equal.
func TestEnumsMatchHeader(t *testing.T) {
	enumerators := readEnumerators(t)
	check := func(name string, number int) {
		t.Helper()
		name = strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		checkEnumerator(t, enumerators, name, number)
	}
	for number, v := range types {
		check(v.String(), number)
	}

	for number, v := range reductions {
		check(v.String(), number)
	}

	for number, v := range paths {
		check("PATH_"+v.String(), number)
	}

	for number, v := range checkLevels {
		check("CHECK_"+v.String(), number)
	}

	wordBoundary := regexp.MustCompile(`([a-z])([A-Z])`)
	for number, v := range operations {
		check(wordBoundary.ReplaceAllString(v.String(), "${1}_$2"), number)
	}
}

var errorsWithCodes = []struct {
	name       string
	err        error
	want       Code
	wantDetail string // in the JSON text
}{
	{
		name: "no error is OK",
		want: CodeOK,
	},
	{
		name:       "divergence has details",
		err:        &symmem.DivergenceError{Group: "world"},
		want:       CodeDivergence,
		wantDetail: `"divergence":{"group":"world"`,
	},
	{
		name:       "deadlock is a divergence",
		err:        &symmem.DeadlockError{Activity: map[int]string{1: "a check"}},
		want:       CodeDivergence,
		wantDetail: `"elsewhere":{"1":"a check"}`,
	},
	{
		name:       "mismatched call is a divergence",
		err:        &symmem.MismatchError{Group: "pair", Others: []int{1}},
		want:       CodeDivergence,
		wantDetail: `"group":"pair"`,
	},
	{
		name:       "device out of memory",
		err:        fmt.Errorf("mapping: %w", symmem.ErrOutOfMemory),
		want:       CodeOutOfMemory,
		wantDetail: "mapping",
	},
	{
		name:       "timeout lists late ranks",
		err:        &symmem.TimeoutError{Missing: []int{3}},
		want:       CodeTimeout,
		wantDetail: `"missing":[3]`,
	},
	{
		name:       "timeout lists absent ranks",
		err:        &symmem.AbsentError{Ranks: []int{2}},
		want:       CodeTimeout,
		wantDetail: `"missing":[2]`,
	},
	{
		name:       "lost ranks are listed",
		err:        &symmem.RankLostError{Ranks: []int{1}},
		want:       CodeRankLost,
		wantDetail: `"ranks":[1]`,
	},
	{
		name:       "lost rank precedes its consequences",
		err:        errors.Join(symmem.ErrClosed, &symmem.RankLostError{}),
		want:       CodeRankLost,
		wantDetail: `"ranks":[]`,
	},
	{
		name:       "out of memory has the requested size",
		err:        &symmem.OutOfMemoryError{Requested: 7},
		want:       CodeOutOfMemory,
		wantDetail: `"requested":7`,
	},
	{
		name:       "panic precedes the error it wraps",
		err:        fmt.Errorf("%w: %w", ErrPanic, symmem.ErrClosed),
		want:       CodePanic,
		wantDetail: `"name":"PANIC"`,
	},
	{
		name: "closed",
		err:  symmem.ErrClosed,
		want: CodeClosed,
	},
	{
		name:       "other errors are FAILED",
		err:        errors.New("cuda error 999"),
		want:       CodeFailed,
		wantDetail: "cuda error 999",
	},
}

func TestCodeOf(t *testing.T) {
	for _, row := range errorsWithCodes {
		t.Run(row.name, func(t *testing.T) {
			if got := CodeOf(row.err); got != row.want {
				t.Errorf("CodeOf(%v) = %v, want %v", row.err, got, row.want)
			}

			if row.err == nil {
				return
			}

			text := Detail(row.want, row.err)
			if !json.Valid([]byte(text)) || !strings.Contains(text, row.wantDetail) {
				t.Errorf("Detail = %s, want valid JSON with %s", text, row.wantDetail)
			}
		})
	}
}

func TestDivergenceWithoutCallSitesSuggestsEnablingThem(t *testing.T) {
	d := symmem.DivergenceError{Sides: []symmem.Side{
		{Ranks: []int{0}, Event: "this"},
		{Ranks: []int{1}, Event: "that"},
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
	for _, row := range []struct {
		err      error
		want     int
		wantName string // in NCCL's enum ncclResult_t
	}{
		{nil, 0, "ncclSuccess"},
		{ErrPanic, 3, "ncclInternalError"},
		{symmem.ErrInvalid, 4, "ncclInvalidArgument"},
		{ErrNotOpen, 5, "ncclInvalidUsage"},
		{&symmem.DivergenceError{}, 5, "ncclInvalidUsage"},
		{symmem.ErrAborted, 6, "ncclRemoteError"},
		{errors.New("any other"), 2, "ncclSystemError"},
	} {
		if got := ncclResult(row.err); got != row.want {
			t.Errorf("ncclResult(%v) = %d, want %d (%s)", row.err, got, row.want, row.wantName)
		}
	}
}
