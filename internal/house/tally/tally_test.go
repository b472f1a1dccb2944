package main

import (
	"strings"
	"testing"
)

func TestTally(t *testing.T) {
	for _, test := range []struct {
		name       string
		in         string // output of go test -json
		want       string // output of run
		wantFailed bool
	}{
		{
			"subtests are counted instead of their parent",
			`{"Action":"pass","Package":"p","Test":"TestA/one"}
			{"Action":"pass","Package":"p","Test":"TestA/two"}
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p","Test":"TestB"}
			{"Action":"pass","Package":"p"}`,
			"3 passed, 0 failed\n", false,
		},
		{
			"subtests without a name are counted as their parent",
			`{"Action":"pass","Package":"p","Test":"TestA/#00"}
			{"Action":"pass","Package":"p","Test":"TestA/#01"}
			{"Action":"pass","Package":"p","Test":"TestA"}`,
			"1 passed, 0 failed\n", false,
		},
		{
			"failures are shown",
			`{"Action":"output","Package":"p","Test":"TestA","Output":"wrong sum\n"}
			{"Action":"fail","Package":"p","Test":"TestA"}
			{"Action":"skip","Package":"p","Test":"TestB"}
			{"Action":"fail","Package":"p"}`,
			"FAILED p\n\nFAILED p TestA\nwrong sum\n\n1 skipped\n0 passed, 1 failed\n", true,
		},
		{
			"a package that does not build is a failure",
			`{"ImportPath":"p","Action":"build-output","Output":"syntax error\n"}
			{"ImportPath":"p","Action":"build-fail"}
			{"Action":"fail","Package":"p"}`,
			"FAILED p\nsyntax error\n\n0 passed, 1 failed\n", true,
		},
		{
			"the output of a crash is shown, with the test that ran",
			`{"Action":"run","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"run","Package":"p","Test":"TestB"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"panic: x\n"}
			{"Action":"output","Package":"p","Output":"FAIL p\n"}
			{"Action":"fail","Package":"p"}`,
			"FAILED p\nFAIL p\n\nNO END p TestB\npanic: x\n\n1 passed, 1 failed\n", true,
		},
		{
			"a crash after a failed test is shown, but a benchmark without an end is not",
			`{"Action":"run","Package":"p","Test":"TestA"}
			{"Action":"fail","Package":"p","Test":"TestA"}
			{"Action":"run","Package":"p","Test":"TestB"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"panic: x\n"}
			{"Action":"fail","Package":"p"}
			{"Action":"run","Package":"q","Test":"TestC"}
			{"Action":"fail","Package":"q","Test":"TestC"}
			{"Action":"run","Package":"q","Test":"BenchmarkD"}
			{"Action":"fail","Package":"q"}`,
			"FAILED p\n\nFAILED p TestA\n\nNO END p TestB\npanic: x\n\nFAILED q\n\nFAILED q TestC\n\n" +
				"0 passed, 2 failed\n", true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out strings.Builder
			hasFailed, err := run(strings.NewReader(test.in), &out)
			if err != nil || hasFailed != test.wantFailed {
				t.Errorf("run = %v, %v; want %v, nil", hasFailed, err, test.wantFailed)
			}

			if out.String() != test.want {
				t.Errorf("run printed\n%s\nwant\n%s", out.String(), test.want)
			}
		})
	}
}

func TestRunRejectsInputWithoutTests(t *testing.T) {
	for _, in := range []string{"", "ok symmem 1.2s"} {
		hasFailed, err := run(strings.NewReader(in), &strings.Builder{})
		if err == nil || !hasFailed {
			t.Errorf("run(%q) = %v, %v; want true and an error", in, hasFailed, err)
		}
	}
}
