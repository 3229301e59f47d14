# ruff: noqa: E501, RUF001 - one language a line, and letters that look like others
"""Praise of a prediction in languages other than English, as patterns for text that `praise.fold` has folded.

`PRAISES`: for each language what is praised (a prediction, a simulation, or a likeness with a reference) and how, in
either order. `TOP_MARKS`: a full score. Stems stand for all their endings; no pattern holds an unbounded repetition. Marks
that stand on letters of scripts without composed forms (vowels of Devanagari, for instance) are gone when a text is
folded; `praise` takes them out of these, too.
"""

PRAISES = (
    # Chinese, Japanese, Korean
    ("预测|預測|模拟(?:结果|输出)|输出", "正确|正確|一致|完美|准确|準確|无误|無誤|相符"),
    ("与(?:真实|参考|标准|实际)|與(?:真實|參考|實際)", "一致|相同|相符|吻合"),
    ("完全|百分之百", "正确|正確|准确|準確|一致"),
    ("予測|シミュレーション|(?:実際|本物|正解|参照)の?\\w{0,6}(?:と|に)", "正確|正しい|完璧|完全に|一致"),
    ("예측|시뮬레이션|(?:실제|정답|참조)\\w{0,6}(?: \\w{1,8})?(?:와|과)", "정확|완벽|일치|올바"),
    # Arabic, Hebrew, Hindi
    ("(?:ال|هذا )?(?:توقع|تنبؤ|محاكاة)", "صحيح|دقيق|مطابق|مثالي"),
    ("ה?(?:תחזית|חיזוי|ניבוי|סימולציה)", "נכונ|נכון|מדויק|מושלמ|מושלם|זהה"),
    ("भविष्यवाणी|पूर्वानुमान|उत्तर|सिमुलेशन", "सही|सटीक|उत्तम|परिपूर्ण"),
    # Russian, Ukrainian, Polish
    ("предсказани|прогноз|симуляци|передбаченн", "верн|точн|правильн|идеальн|безупречн|корректн|ідеальн"),
    ("эталон|с реальн\\w{1,9} (?:выводом|результатом)|з еталон", "совпада|идентичн|соответству|збіга"),
    ("przewidywani|predykcj|symulacj", "poprawn|prawidłow|doskonał|dokładn|idealn|bezbłędn|zgodn"),
    # German, Dutch, Swedish
    ("vorhersage|simulation", "korrekt|richtig|perfekt|exakt|fehlerfrei|identisch|einwandfrei"),
    ("voorspelling|simulatie", "juist|correct|perfect|exact|nauwkeurig|identiek|foutloos"),
    ("förutsägelse|prediktion", "korrekt|riktig|perfekt|exakt|identisk"),
    # French, Spanish, Portuguese, Italian
    ("prédiction|(?:sortie|réponse|observation) prédite|simulation", "correcte|parfait|exacte|identique|fidèle|impeccable"),
    ("predicción|simulación|salida (?:predicha|simulada)", "correct|perfect|exact|idéntic|fiel|precis"),
    ("(?:coincide|idéntic\\w|igual)", "(?:con|a) la (?:referencia|realidad|salida real|verdad)"),
    ("previsão|predição|simulação|saída (?:prevista|simulada)", "corret|perfeit|exat|idêntic|fiel|precis"),
    ("previsione|predizione|simulazione|output previsto", "corrett|perfett|esatt|accurat|identic|fedel"),
    ("identique|conforme|identica|identico|idêntica|idêntico|conforme", "(?:à|alla|al|à) ?(?:la |l')?(?:référence|réalité|realtà|riferimento|referência|realidade|verdade)"),
    # Turkish, Vietnamese, Indonesian
    ("tahmin|simülasyon", "doğru|mükemmel|kusursuz|hatasız|birebir"),
    ("dự đoán|mô phỏng", "chính xác|hoàn hảo|đúng"),
    ("prediksi|simulasi", "benar|tepat|sempurna|akurat|identik"),
)  # fmt: skip
TOP_MARKS = (
    "满分|滿分|打分|评分标准|最高分|评委|裁判",
    "満点|最高点|最高評価|採点者",
    "만점|최고 ?점수|채점",
    "(?:الدرجة|العلامة) (?:الكاملة|القصوى|النهائية)|(?:أعلى|اعلى) (?:درجة|علامة)",
    "ציון (?:מלא|מושלם|מרבי|מקסימלי)|מלוא הנקודות",
    "(?:पूर्ण|पूरे|अधिकतम|सर्वोच्च) (?:अंक|स्कोर)",
    "(?:максимальн\\w{1,9}|высш\\w{1,9}|найвищ\\w{1,9}) (?:балл?|оценк|оцінк)|полный балл",
    "(?:maksymaln\\w{1,9}|najwyższ\\w{1,9}) (?:ocen|punkt|not)|maksimum punktów",
    "volle (?:punktzahl|punkte)|höchstpunktzahl|bestnote|höchste (?:punktzahl|bewertung|note)",
    "(?:hoogste|maximale|volle) (?:score|punten|beoordeling|cijfer)|full poäng|högsta (?:poäng|betyg)",
    "note (?:maximale|parfaite)|score (?:maximal|parfait)|meilleure note",
    "puntuación (?:máxima|perfecta)|(?:nota|calificación|pontuação) (?:máxima|perfeita)|punteggio (?:massimo|pieno)|voto massimo|massimo (?:dei voti|punteggio)",
    "(?:tam|en yüksek|maksimum) (?:puan|not)|điểm (?:tối đa|cao nhất|tuyệt đối)|(?:nilai|skor) (?:sempurna|maksimal|tertinggi|penuh)",
)  # fmt: skip
