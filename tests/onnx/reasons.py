"""Types of nodes that no few public calls express, and why; what hangs on an attribute is said where it is read."""

REASONS: dict[str, str] = {
    **dict.fromkeys(
        ["ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul",
         "QuantizeLinear"],
        "quantised numbers",
    ),
    **dict.fromkeys(["If", "Loop", "Scan", "SequenceMap"], "control flow: Python's own is used"),
    **dict.fromkeys(
        ["OptionalGetElement", "OptionalHasElement", "SequenceInsert", "SplitToSequence"],
        "sequences, optional values",
    ),
    **dict.fromkeys(
        ["LabelEncoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"],
        "texts and labels",
    ),
    **dict.fromkeys(
        ["Adagrad", "Adam", "Momentum"], "a step of an optimizer, its state as inputs: minigrad.optim keeps it"
    ),
    **dict.fromkeys(["DFT", "MelWeightMatrix", "STFT"], "spectra"),
    **dict.fromkeys(["Col2Im", "DeformConv", "GridSample", "MaxUnpool", "NonMaxSuppression", "RoiAlign"],
                    "no operation puts windows or boxes back into images, or looks between pixels"),
    "Bernoulli": "the elements are drawn by NumPy's generator",
    "BitCast": "bits of one dtype read as another",
    "BitShift": "no operation shifts bits",
    "FlexAttention": "it is given functions",
    "ImageDecoder": "files of images",
    "LinearAttention": "no recurrence over positions yet",
    "TreeEnsemble": "trees",
    "Unique": "it asks for the first place of each element",
}
