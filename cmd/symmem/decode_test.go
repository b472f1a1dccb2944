package main

import (
	"encoding/json"
	"testing"

	"symmem/internal/bench"
)

// TestDecodeLayersAreRightWithEveryProduct runs all of the bench, which looks at every element.
func TestDecodeLayersAreRightWithEveryProduct(t *testing.T) {
	softly(t)
	for _, product := range []bench.Product{bench.CuBLAS, bench.PlainProduct} {
		code, stdout, stderr := symmemRun(t, "bench", "decode", "--backend=nccl", "--quick",
			"--batches=1", "--hidden=528", "--layers=2", "--batch-sizes=1,7", "--json",
			"--product="+string(product))
		var report bench.Report
		if err := json.Unmarshal([]byte(stdout), &report); code != exitOK || err != nil {
			t.Fatalf("%s: exit code %d, %v\n%s", product, code, err, stderr)
		}
		if len(report.Results) != 2 {
			t.Errorf("%s: %d results", product, len(report.Results))
		}
		for _, r := range report.Results {
			if r.Params["product"] != string(product) {
				t.Errorf("%s: %v", product, r.Params)
			}
		}
	}
}
