package bench

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"symmem"
	"symmem/bench/report"
)

// NCCLTests writes rows in the format of nccl-tests, so that tools for nccl-tests can read them.
type NCCLTests struct {
	Writer         io.Writer
	operation      *Operation // operation of the current table, or nil before its first row
	busSum         float64    // sum of the table's bus bandwidths in GB/s
	busCount       int        // number of bus bandwidths in busSum
	wrong          float64    // number of wrong elements in the table's results
	refusalReasons []string   // why calls of the table did not take the requested path
}

// ncclNames maps each type whose name in nccl-tests differs from ours to its name there.
var ncclNames = map[symmem.DataType]string{
	symmem.Float64: "double", symmem.Float32: "float", symmem.Float16: "half",
	symmem.BFloat16: "bfloat16",
}

// TypeName returns the name of a type in nccl-tests.
func TypeName(t symmem.DataType) string {
	if name, ok := ncclNames[t]; ok {
		return name
	}
	return t.String()
}

// ncclHeader is the header of a table. The two verbs align the first line; their arguments are "".
const ncclHeader = `#
#%61s out-of-place %21s in-place
#       size         count      type   redop    root` +
	"     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong" + `
#        (B)    (elements)                          ` +
	"     (us)  (GB/s)  (GB/s)              (us)  (GB/s)  (GB/s)" + `
`

// WriteRow writes a row. Before the first row of an operation, it completes the previous table and
// writes a header.
func (n *NCCLTests) WriteRow(o *CollectiveOptions, r *Row) error {
	var b bytes.Buffer
	if n.operation != r.Operation {
		if err := n.WriteFooter(); err != nil {
			return err
		}
		n.operation = r.Operation
		fmt.Fprintf(&b, "# %s\n"+ncclHeader, r.Operation.Name, "", "")
	}
	redop := "none"
	root := -1 // as in nccl-tests, for operations without a root
	if r.Operation.kind.Reduces() {
		redop = o.ReduceOp.String()
	}
	if r.Operation.kind.HasRoot() {
		root = 0
	}
	outOfPlace, inPlace := n.addResult(r, r.Results[0]), n.addResult(r, r.Results[1])
	fmt.Fprintf(&b, "%12d  %12d  %8s  %6s  %6d%s%s%s\n", r.Bytes, r.Count,
		TypeName(o.DataType), redop, root, outOfPlace, inPlace, n.addRefusals(r))
	_, err := n.Writer.Write(b.Bytes())
	return err
}

// addRefusals adds the reasons for which calls of r did not take the requested path to
// n.refusalReasons. It returns a comment that names the paths taken instead, or "".
func (n *NCCLTests) addRefusals(r *Row) string {
	var takenPaths [2]string // out of place and in place; "" if it is the requested path
	for i, result := range r.Results {
		if result == nil || result.Params["refused"] == nil {
			continue
		}
		takenPaths[i] = fmt.Sprint(result.Params["took"])
		reason := fmt.Sprint(result.Params["refused"])
		if !slices.Contains(n.refusalReasons, reason) {
			n.refusalReasons = append(n.refusalReasons, reason)
		}
	}
	switch {
	case takenPaths == [2]string{}:
		return ""
	case takenPaths[0] == takenPaths[1] || r.Results[1] == nil:
		return "  # took " + takenPaths[0]
	case takenPaths[0] == "":
		return "  # took " + takenPaths[1] + " in place"
	case takenPaths[1] == "":
		return "  # took " + takenPaths[0] + " out of place"
	}
	return "  # took " + takenPaths[0] + ", in place " + takenPaths[1]
}

// addResult adds a result of r to the totals of the table and returns its columns. A nil result
// means that the operation has no such call.
func (n *NCCLTests) addResult(r *Row, result *report.Result) string {
	if result == nil {
		return fmt.Sprintf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A")
	}
	algorithmGBps, busGBps := r.bandwidths(result.Median)
	wrong := result.Figures["wrong"]
	n.busSum += busGBps
	n.busCount++
	n.wrong += wrong
	microseconds := result.Median / 1e3
	return fmt.Sprintf("  %7s  %6s  %6s  %6.6g", formatWidth(microseconds, 7),
		formatWidth(algorithmGBps, 6), formatWidth(busGBps, 6), wrong)
}

// bandwidths returns the algorithm bandwidth and the bus bandwidth, as nccl-tests calls them, of a
// call that takes ns nanoseconds.
func (r *Row) bandwidths(ns float64) (algorithmGBps, busGBps float64) {
	algorithmGBps = float64(r.Bytes) / max(ns, 1e-3) // not infinite if ns is 0
	return algorithmGBps, algorithmGBps * r.Operation.busFactor(float64(r.Ranks))
}

// formatWidth formats a number with two decimals, or with fewer if they do not fit into width.
func formatWidth(v float64, width int) string {
	integerDigits := 0
	if v >= 1 {
		integerDigits = int(math.Log10(v)) + 1
	}
	decimals := min(max(width-1-integerDigits, 0), 2)
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// WriteFooter writes the totals of the current table and ends it. It does nothing without a table.
func (n *NCCLTests) WriteFooter() error {
	if n.operation == nil {
		return nil
	}
	verdict := "OK"
	if n.wrong > 0 {
		verdict = "FAILED"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b,
		"# Out of bounds values : %.6g %s\n# Avg bus bandwidth    : %.6g\n#\n",
		n.wrong, verdict, n.busSum/float64(max(n.busCount, 1)))
	for _, reason := range n.refusalReasons {
		fmt.Fprintf(&b, "# did not take the requested path: %s\n#\n", reason)
	}
	*n = NCCLTests{Writer: n.Writer}
	_, err := n.Writer.Write(b.Bytes())
	return err
}
