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
	Writer io.Writer

	// The following fields describe the current table, which has the rows of one operation.
	operation      *Operation // nil before the first row
	busSum         float64    // sum of the bus bandwidths in GB/s
	busCount       int        // number of bus bandwidths in busSum
	wrongElements  float64    // number of wrong elements in the results of all calls
	refusalReasons []string   // why calls did not take the requested path, each reason once
}

// ncclNames holds the names of types in nccl-tests, if they differ from the names in symmem.
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

// ncclHeader is a format of the header of a table. Its two arguments are "", so that the widths in
// the first line produce spaces.
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
	var out bytes.Buffer
	if n.operation != r.Operation {
		if err := n.WriteFooter(); err != nil {
			return err
		}

		n.operation = r.Operation
		fmt.Fprintf(&out, "# %s\n"+ncclHeader, r.Operation.Name, "", "")
	}

	redop := "none"
	if r.Operation.kind.Reduces() {
		redop = o.ReduceOp.String()
	}

	root := -1 // as in nccl-tests, for operations without a root
	if r.Operation.kind.HasRoot() {
		root = 0
	}

	for _, result := range r.Results {
		if result != nil {
			n.addToTotals(r, result)
		}
	}

	outOfPlace := r.formatResult(r.Results[0])
	inPlace := r.formatResult(r.Results[1])
	fmt.Fprintf(&out, "%12d  %12d  %8s  %6s  %6d%s%s%s\n", r.Bytes, r.Count,
		TypeName(o.DataType), redop, root, outOfPlace, inPlace, r.takenPathsComment())
	_, err := n.Writer.Write(out.Bytes())
	return err
}

// takenPathsComment returns a comment for the end of the row. It names the path that calls took
// instead of the requested one. If all calls took the requested path, the comment is "".
func (r *Row) takenPathsComment() string {
	// otherPath returns the path that the calls of a result took, or "" if it is the requested one.
	otherPath := func(result *report.Result) string {
		if result == nil || result.Params["refused"] == nil {
			return ""
		}

		return fmt.Sprint(result.Params["took"])
	}
	outOfPlace := otherPath(r.Results[0])
	inPlace := otherPath(r.Results[1])
	switch {
	case outOfPlace == "" && inPlace == "":
		return ""
	case r.Results[1] == nil: // only out of place
		return "  # took " + outOfPlace
	case outOfPlace == inPlace:
		return "  # took " + outOfPlace
	case outOfPlace == "":
		return "  # took " + inPlace + " in place"
	case inPlace == "":
		return "  # took " + outOfPlace + " out of place"
	}

	return "  # took " + outOfPlace + ", in place " + inPlace
}

// addToTotals adds a result of row r to the totals of the table, and the reason why its calls did
// not take the requested path, if any, to n.refusalReasons.
func (n *NCCLTests) addToTotals(r *Row, result *report.Result) {
	_, busGBps := r.bandwidths(result.Median)
	n.busSum += busGBps
	n.busCount++
	n.wrongElements += result.Figures["wrong"]
	if result.Params["refused"] == nil {
		return
	}

	reason := fmt.Sprint(result.Params["refused"])
	if !slices.Contains(n.refusalReasons, reason) {
		n.refusalReasons = append(n.refusalReasons, reason)
	}
}

// formatResult returns the columns of a result. A nil result means that the operation was not
// measured in this way, such as in place.
func (r *Row) formatResult(result *report.Result) string {
	if result == nil {
		return fmt.Sprintf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A")
	}

	algorithmGBps, busGBps := r.bandwidths(result.Median)
	microseconds := result.Median / 1e3
	return fmt.Sprintf("  %7s  %6s  %6s  %6.6g", formatWidth(microseconds, 7),
		formatWidth(algorithmGBps, 6), formatWidth(busGBps, 6), result.Figures["wrong"])
}

// bandwidths returns the algorithm bandwidth and the bus bandwidth, as nccl-tests calls them, of a
// call that takes ns nanoseconds. Bytes per nanosecond are GB/s.
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

	const pointWidth = 1
	decimals := min(max(width-pointWidth-integerDigits, 0), 2)
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// WriteFooter writes the totals of the current table and ends it. It does nothing without a table.
func (n *NCCLTests) WriteFooter() error {
	if n.operation == nil {
		return nil
	}

	verdict := "OK"
	if n.wrongElements > 0 {
		verdict = "FAILED"
	}

	meanBusGBps := n.busSum / float64(max(n.busCount, 1))
	var out bytes.Buffer
	fmt.Fprintf(&out, // nccl-tests counts wrong elements as "out of bounds"
		"# Out of bounds values : %.6g %s\n# Avg bus bandwidth    : %.6g\n#\n",
		n.wrongElements, verdict, meanBusGBps)
	for _, reason := range n.refusalReasons {
		fmt.Fprintf(&out, "# did not take the requested path: %s\n#\n", reason)
	}

	*n = NCCLTests{Writer: n.Writer} // no current table
	_, err := n.Writer.Write(out.Bytes())
	return err
}
