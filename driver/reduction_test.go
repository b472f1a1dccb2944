package driver

import "testing"

// TestEveryReductionHasARow fails for a reduction without a row in the table, or with another
// reduction's row.
func TestEveryReductionHasARow(t *testing.T) {
	names, numbers, kernels := map[string]bool{}, map[Code]bool{}, map[Code]bool{}
	for op := range ReduceOp(ReduceOps) {
		row := &reductions[op]
		if row.name == "" || names[row.name] || row.nccl != 0 && numbers[row.nccl] ||
			row.kernel != 0 && !row.divides && kernels[row.kernel] {
			t.Errorf("reduction %d has row %+v, want one of its own", op, row)
		}
		if op.Accepts(Int32) == op.Scales() {
			t.Errorf("%v accepts integers: %v", op, op.Accepts(Int32))
		}
		names[row.name], numbers[row.nccl], kernels[row.kernel] = true, true, true
		if parsed, err := ParseReduceOp(op.String()); err != nil || parsed != op {
			t.Errorf("ParseReduceOp(%q) = %v, %v", op, parsed, err)
		}
		if logical, ok := row.logical.Number(); ok && !ReduceOp(logical).Accepts(Uint8) {
			t.Errorf("%v of booleans uses %v, which does not accept bytes", op, ReduceOp(logical))
		}
	}
	none := ReduceOp(ReduceOps)
	if none.String() != "redop(?)" || none.Accepts(Int32) || none.NCCL() != 0 {
		t.Errorf("a reduction without a row has name %q, accepts integers or has an NCCL code", none)
	}
	if _, err := ParseReduceOp("bnot"); err == nil {
		t.Error("ParseReduceOp accepts an unknown name")
	}
}

func TestFactorHasTypeOfElements(t *testing.T) {
	for dataType, want := range map[DataType]uint64{
		Float64: 0x3FD5555555555555, Float32: 0x3EAAAAAB, Float16: 0x3555, BFloat16: 0x3EAB,
	} {
		call := Call{DataType: dataType, Factor: 1.0 / 3}
		if got := call.FactorBits(); got != want {
			t.Errorf("FactorBits of %v = %#x; want %#x", dataType, got, want)
		}
	}
}
