package bench

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"symmem"
	"symmem/bench/report"
)

// NCCLTests writes rows in the format of nccl-tests, with a table for each operation. For example,
// an all-reduce of 1 MiB on 4 ranks takes 20 us with two buffers and 10 us in place:
//
//	# all_reduce
//	#                                    out-of-place                       in-place
//	#   size   count   type  redop  root     time   algbw   busbw  #wrong     time   algbw  ...
//	 1048576  262144  float    sum    -1    20.00   52.43   78.64       0    10.00  104.86  ...
//	# Out of bounds values : 0 OK
//	# Avg bus bandwidth    : 117.965
//
// The algorithm bandwidth (algbw) is 1 MiB divided by the time. The bus bandwidth (busbw) is algbw
// times Operation.busFactor, here 1.5.
type NCCLTests struct {
	Writer io.Writer

	operation      *Operation // of the current table; nil before the first row
	busSum         float64    // sum of the bus bandwidths in GB/s
	busCount       int        // number of bus bandwidths in busSum
	wrongElements  float64    // number of wrong elements in all outputs
	refusalReasons []string   // unique reasons why calls did not take the requested path
}

// WriteRow writes a row. Before the first row of an operation, it writes the footer of the previous
// table and the header of a new one.
func (n *NCCLTests) WriteRow(o *CollectiveOptions, r *Row) error {
	var out bytes.Buffer
	isNewTable := n.operation != r.Operation
	if isNewTable {
		if err := n.WriteFooter(); err != nil {
			return err
		}

		n.operation = r.Operation
		writeHeader(&out, r.Operation)
	}

	for _, result := range r.Results {
		if result != nil {
			n.addToTotals(r, result)
		}
	}

	redop := "none"
	if r.Operation.kind.Reduces() {
		redop = o.ReduceOp.String()
	}

	root := -1 // as in nccl-tests, for operations without a root
	if r.Operation.kind.HasRoot() {
		root = 0
	}

	outOfPlace, inPlace := r.Results[0], r.Results[1]
	fmt.Fprintf(&out, "%12d  %12d  %8s  %6s  %6d%s%s%s\n", r.Bytes, r.Count,
		TypeName(o.DataType), redop, root, r.formatResult(outOfPlace), r.formatResult(inPlace),
		r.takenPathsComment())
	_, err := n.Writer.Write(out.Bytes())
	return err
}

func writeHeader(out io.Writer, o *Operation) {
	fmt.Fprintf(out, "# %s\n#\n", o.Name)
	fmt.Fprintf(out, "#%74s%31s\n", "out-of-place", "in-place")
	const (
		callColumns   = "#       size         count      type   redop    root"
		callUnits     = "#        (B)    (elements)                          "
		resultColumns = "     time   algbw   busbw  #wrong"
		resultUnits   = "     (us)  (GB/s)  (GB/s)"
		noUnit        = "         " // of #wrong
	)
	fmt.Fprintln(out, callColumns+resultColumns+resultColumns)
	fmt.Fprintln(out, callUnits+resultUnits+noUnit+resultUnits)
}

// ncclNames holds the types that nccl-tests and DataType.String name differently.
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

// addToTotals adds a result of row r to the totals of the table.
func (n *NCCLTests) addToTotals(r *Row, result *report.Result) {
	_, busGBps := r.bandwidths(result.Median)
	n.busSum += busGBps
	n.busCount++
	n.wrongElements += result.Figures["wrong"]
	refusal := result.Params["refused"]
	if refusal == nil {
		return
	}

	reason := fmt.Sprint(refusal)
	if !slices.Contains(n.refusalReasons, reason) {
		n.refusalReasons = append(n.refusalReasons, reason)
	}
}

// bandwidths returns the bandwidths of a call that takes callNS nanoseconds.
func (r *Row) bandwidths(callNS float64) (algorithmGBps, busGBps float64) {
	const minNS = 1e-3 // avoids a division by 0
	algorithmGBps = float64(r.Bytes) / max(callNS, minNS)
	return algorithmGBps, algorithmGBps * r.Operation.busFactor(float64(r.Ranks))
}

// formatResult returns the four columns of a result, or "N/A" in each if result is nil.
func (r *Row) formatResult(result *report.Result) string {
	if result == nil {
		return fmt.Sprintf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A")
	}

	algorithmGBps, busGBps := r.bandwidths(result.Median)
	const nsPerMicrosecond = 1e3
	microseconds := result.Median / nsPerMicrosecond
	return fmt.Sprintf("  %7s  %6s  %6s  %6.6g", formatWidth(microseconds, 7),
		formatWidth(algorithmGBps, 6), formatWidth(busGBps, 6), result.Figures["wrong"])
}

// formatWidth formats v with two decimals, or with fewer if the text exceeds width.
func formatWidth(v float64, width int) string {
	integerDigits := 1
	if v >= 10 {
		integerDigits = int(math.Log10(v)) + 1
	}

	const pointWidth = 1
	const maxDecimals = 2
	freeWidth := max(width-integerDigits-pointWidth, 0)
	decimals := min(freeWidth, maxDecimals)
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// takenPathsComment returns a comment for the end of the row, such as "# took plain in place", or
// "" if all calls took the requested path.
func (r *Row) takenPathsComment() string {
	outOfPlace, inPlace := r.Results[0], r.Results[1]
	path, inPlacePath := unrequestedPath(outOfPlace), unrequestedPath(inPlace)
	switch {
	case path == "" && inPlacePath == "":
		return ""
	case inPlace == nil || path == inPlacePath:
		return "  # took " + path
	case path == "":
		return "  # took " + inPlacePath + " in place"
	case inPlacePath == "":
		return "  # took " + path + " out of place"
	}

	return "  # took " + path + ", in place " + inPlacePath
}

// unrequestedPath returns the path that calls took instead of the requested one, or "".
func unrequestedPath(result *report.Result) string {
	if result == nil || result.Params["refused"] == nil {
		return ""
	}

	return fmt.Sprint(result.Params["took"])
}

// WriteFooter ends the current table, if any, with its totals.
func (n *NCCLTests) WriteFooter() error {
	if n.operation == nil {
		return nil
	}

	verdict := "OK"
	if n.wrongElements > 0 {
		verdict = "FAILED"
	}

	var out strings.Builder
	// nccl-tests calls wrong elements "out of bounds".
	fmt.Fprintf(&out, "# Out of bounds values : %.6g %s\n", n.wrongElements, verdict)
	meanBusGBps := n.busSum / float64(max(n.busCount, 1))
	fmt.Fprintf(&out, "# Avg bus bandwidth    : %.6g\n#\n", meanBusGBps)
	for _, reason := range n.refusalReasons {
		fmt.Fprintf(&out, "# did not take the requested path: %s\n#\n", reason)
	}

	*n = NCCLTests{Writer: n.Writer} // no current table
	_, err := io.WriteString(n.Writer, out.String())
	return err
}
