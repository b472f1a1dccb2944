package tuning

import "slices"

// TakesWindows reports whether some call of a group on symmetric buffers takes the window path.
// direct reports whether calls of the group can go direct.
func (t *Table) TakesWindows(group Shape, direct bool) bool {
	sizes := t.sizes(group)
	for _, call := range t.kinds(group) {
		for _, call.Bytes = range sizes {
			for _, call.InPlace = range []bool{false, true} {
				if t.takesWindow(call, group, direct) {
					return true
				}
			}
		}
	}
	return false
}

// concerns reports whether a rule may decide about calls of a group.
func (r *Rule) concerns(group Shape) bool { return r.Shape == group || r.general() }

// sizes are some between which all sizes are chosen alike: a choice changes behind the end of a
// step alone.
func (t *Table) sizes(group Shape) []int64 {
	sizes := []int64{1}
	for i := range t.Rules {
		if !t.Rules[i].concerns(group) {
			continue
		}
		for _, s := range t.Rules[i].Steps {
			if s.UpTo > 0 {
				sizes = append(sizes, int64(s.UpTo), int64(s.UpTo)+1)
			}
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// kinds are a call of each operation for a type that no rule names, and for each that one does.
func (t *Table) kinds(group Shape) (all []Call) {
	for _, operation := range operations {
		all = append(all, Call{Operation: operation})
	}
	for i := range t.Rules {
		r := &t.Rules[i]
		named := Call{Operation: r.Operation, DataType: r.DataType}
		if r.concerns(group) && r.DataType != "" && !slices.Contains(all, named) {
			all = append(all, named)
		}
	}
	return all
}

func (t *Table) takesWindow(call Call, group Shape, direct bool) bool {
	if direct {
		if goes, _ := t.ChooseDirect(call, true, group); goes {
			return false
		}
	}
	path, _ := t.Choose(call, group)
	return path == Window
}
