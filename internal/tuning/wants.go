package tuning

// TakesWindows tells whether some call of a group on symmetric buffers takes the window path.
// direct tells whether calls of the group can go direct.
func (t *Table) TakesWindows(group Shape, direct bool) bool {
	sizes := []int64{1}
	for i := range t.Rules {
		for _, s := range t.Rules[i].Steps {
			// A choice changes behind the end of a step alone.
			if s.UpTo > 0 {
				sizes = append(sizes, int64(s.UpTo), int64(s.UpTo)+1)
			}
		}
	}
	for _, call := range t.kinds() {
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

// kinds are a call for each operation and each type that a rule names, and a type that none does.
func (t *Table) kinds() (all []Call) {
	named := map[string]bool{"": true}
	for i := range t.Rules {
		named[t.Rules[i].DataType] = true
	}
	for _, operation := range operations {
		for dataType := range named {
			all = append(all, Call{Operation: operation, DataType: dataType})
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
